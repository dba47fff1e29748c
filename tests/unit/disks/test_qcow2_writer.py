"""A qcow2 image that we write is one that qemu-img finds sound and equal to the disk."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disk_tools import run, sparse
from tpu_image.disks import archive, qcow2_writer
from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.image import open_image
from tpu_image.disks.qcow2_writer import CLUSTER
from tpu_image.disks.raw import RawSource

MIB = 1 << 20


def written(disk: EditedDisk, path: Path, *, zstd: bool = False) -> Path:
    with path.open("w+b") as file:
        result = archive.write_qcow2(disk, file, threads=2, zstd=zstd)
    assert result.size == path.stat().st_size
    run("qemu-img", "check", "-f", "qcow2", path)
    return path


def opened(path: Path, size: int = 0) -> EditedDisk:
    return EditedDisk(RawSource(os.open(path, os.O_RDONLY), str(path)), size or None)


def content(kind: str, noise: random.Random) -> bytes:
    """A cluster: of text, of noise, or of noise that hardly fits when packed."""
    if kind == "noise":
        return noise.randbytes(CLUSTER)
    if kind == "text":
        return (b"%d: some text\n" % noise.randrange(1 << 30) * CLUSTER)[:CLUSTER]
    return noise.randbytes(CLUSTER - 300).ljust(CLUSTER, b"\0")


@settings(max_examples=30, deadline=None)
@given(
    kinds=st.lists(st.sampled_from(["noise", "text", "tight", "zero", "gap"]), max_size=60),
    tail=st.integers(0, CLUSTER // 512).map(lambda sectors: sectors * 512),
    zstd=st.booleans(),
)
def test_any_disk_is_written_as_it_is(
    kinds: list[str], tail: int, zstd: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("disk")
    noise = random.Random(len(kinds))
    parts, at = {}, 0
    for kind in kinds:
        if kind == "gap":
            at += 600 * MIB
            continue
        parts[at] = bytes(CLUSTER) if kind == "zero" else content(kind, noise)
        at += CLUSTER
    raw = sparse(folder / "raw", at + tail + 512, {**parts, at + tail: b"end" * 100})
    disk = opened(raw)
    with disk.base:
        image = written(disk, folder / "image", zstd=zstd)
    run("qemu-img", "compare", "-f", "raw", "-F", "qcow2", raw, image)
    with open_image(image) as again, open_image(raw) as source:
        assert all(again.read_at(offset, 512) == source.read_at(offset, 512) for offset in (0, at, at + tail))


def test_clusters_of_a_base_are_carried_over_unless_they_were_changed(tmp_path: Path) -> None:
    noise = random.Random(2)
    text = b"".join(b"%d: text\n" % number for number in range(400_000))
    raw = sparse(tmp_path / "raw", 40 * MIB, {5 * MIB: noise.randbytes(MIB), 9 * MIB: text})
    run("qemu-img", "convert", "-c", "-O", "qcow2", raw, tmp_path / "base")
    with open_image(tmp_path / "base") as base:
        disk = EditedDisk(base)
        disk.write_at(10 * MIB + 7, b"changed")
        disk.discard([(11 * MIB, MIB)])
        image = written(disk, tmp_path / "image")
        with image.open("rb") as file:
            written_bytes = file.read()
        assert (base.stored_deflate(9 * MIB) or b"none") in written_bytes
        assert (base.stored_deflate(10 * MIB) or b"") not in written_bytes
    with raw.open("r+b") as file:
        file.seek(10 * MIB + 7)
        file.write(b"changed")
        file.seek(11 * MIB)
        file.write(bytes(MIB))
    run("qemu-img", "compare", raw, image)


def test_the_count_of_threads_changes_nothing(tmp_path: Path) -> None:
    noise = random.Random(3)
    raw = sparse(tmp_path / "raw", 64 * MIB, {MIB * n: content("tight", noise) * 4 for n in range(0, 60, 3)})
    disk = opened(raw)
    results = []
    for threads in (1, 3):
        with (tmp_path / "image").open("w+b") as file:
            results.append(archive.write_qcow2(disk, file, threads=threads))
    disk.base.close()
    assert results[0] == results[1]


def test_a_file_of_many_clusters_counts_its_own_tables(tmp_path: Path) -> None:
    """Over 2 GiB a second block of reference counts is needed; a count that starts high shows it sooner."""
    image = qcow2_writer._Image((tmp_path / "image").open("w+b"), MIB, zstd=False)
    for used, blocks in ((1, 1), (32766, 1), (32767, 2), (65000, 2), (65533, 2), (65534, 3)):
        image._references = image._references[:1] * used
        assert image._reference_blocks() == (blocks, 1)


def test_an_empty_disk_is_a_few_clusters(tmp_path: Path) -> None:
    disk = opened(sparse(tmp_path / "raw", 10 << 30))
    with disk.base:
        image = written(disk, tmp_path / "image")
    assert image.stat().st_size <= 6 * CLUSTER
    assert json.loads(run("qemu-img", "info", "--output=json", image))["virtual-size"] == 10 << 30
