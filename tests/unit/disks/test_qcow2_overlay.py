"""What was changed on a disk, as qcow2 over that disk: what QEMU's own tools read is the changed disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from disk_tools import run, sparse
from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.errors import UnsupportedError
from tpu_image.disks.image import open_image
from tpu_image.disks.qcow2_overlay import CLUSTER, write_overlay

MIB = 1 << 20
SIZE = 3 * MIB + 512


def overlaid(base: Path, overlay: Path) -> bytes:
    """Read both as QEMU would."""
    source = {
        "driver": "qcow2",
        "file": {"driver": "file", "filename": str(overlay)},
        "backing": {"driver": "raw", "file": {"driver": "file", "filename": str(base)}},
    }
    result = overlay.with_suffix(".out")
    run("qemu-img", "convert", "-O", "raw", f"json:{json.dumps(source)}", result)
    return result.read_bytes()


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.lists(st.tuples(st.integers(0, SIZE - 1), st.binary(min_size=1, max_size=3 * CLUSTER)), max_size=5))
def test_qemu_reads_the_changed_disk(tmp_path: Path, writes: list[tuple[int, bytes]]) -> None:
    base = sparse(tmp_path / "base", SIZE, {0: b"first" * 1000, 2 * MIB: b"middle" * 9000})
    overlay = tmp_path / "overlay"
    expected = bytearray(base.read_bytes())
    with open_image(base) as source, overlay.open("wb") as file:
        disk = EditedDisk(source)
        for offset, data in writes:
            kept = data[: SIZE - offset]
            disk.write_at(offset, kept)
            expected[offset : offset + len(kept)] = kept
        write_overlay(disk, file)
    run("qemu-img", "check", overlay)
    assert overlaid(base, overlay) == expected


def test_it_is_as_small_as_the_edit_whatever_the_disk(tmp_path: Path) -> None:
    base = sparse(tmp_path / "base", 1 << 40)
    overlay = tmp_path / "overlay"
    with open_image(base) as source, overlay.open("wb") as file:
        disk = EditedDisk(source)
        disk.write_at(0, b"start")
        disk.write_at((1 << 40) - 3, b"end")
        write_overlay(disk, file)
    run("qemu-img", "check", overlay)
    assert overlay.stat().st_size < 10 * CLUSTER


def test_a_disk_whose_tables_do_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpu_image.disks.qcow2_overlay.REFCOUNTS", 4)
    base = sparse(tmp_path / "base", MIB)
    with open_image(base) as source, (tmp_path / "overlay").open("wb") as file:
        disk = EditedDisk(source)
        disk.write_at(0, b"x")
        with pytest.raises(UnsupportedError, match="too large for an overlay"):
            write_overlay(disk, file)
