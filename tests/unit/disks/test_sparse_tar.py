"""The archive is what GNU tar, Python and libarchive all read as the same disk."""

from __future__ import annotations

import functools
import io
import itertools
import random
import subprocess
import tarfile
from pathlib import Path

import pytest

from tpu_image.disks import gzip_member, sparse_tar
from tpu_image.disks.source import Extent, ExtentKind

GIB = 1 << 30


def write_archive(path: Path, stored: list[Extent], size: int, seed: int) -> bytes:
    """Write an archive whose stored extents hold random bytes, and give those bytes joined."""
    source = random.Random(seed)
    data = {extent.offset: source.randbytes(extent.length) for extent in stored}
    contents = [sparse_tar.header(stored, size, 1_700_000_000), *data.values(), sparse_tar.END]
    parts = [functools.partial(gzip_member.deflate, content) for content in contents]
    with path.open("wb") as sink:
        written = gzip_member.write_member(parts, sink, threads=2)
    assert path.stat().st_size == written
    return b"".join(data.values())


def extents(*parts: tuple[int, int]) -> list[Extent]:
    return [Extent(offset, length, ExtentKind.DATA) for offset, length in parts]


LAYOUTS = {
    "empty disk": (extents(), GIB),
    "one extent at the start": (extents((0, 4096)), GIB),
    "stored to the last byte": (extents((0, 512), (GIB - 4096, 4096)), GIB),
    "four extents and a hole": (extents(*[(i * 65536, 4096) for i in range(4)]), GIB),
    "one continuation block": (extents(*[(i * 65536, 4096) for i in range(24)]), GIB),
    "many continuation blocks": (extents(*[(i * 8192, 4096) for i in range(500)]), GIB),
    "beyond eight GiB": (extents((0, 4096), (9 * GIB, 8192), (12 * GIB - 4096, 4096)), 12 * GIB),
}


def stored_by_tarfile(path: Path) -> tuple[str, int, list[tuple[int, int]]]:
    with tarfile.open(path) as archive:
        (member,) = archive.getmembers()
        assert member.issparse()
        return member.name, member.size, [(o, n) for o, n in member.sparse if n]  # type: ignore[misc, union-attr]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_python_and_gnu_tar_read_the_map_and_the_data(layout: str, tmp_path: Path) -> None:
    stored, size = LAYOUTS[layout]
    archive = tmp_path / "image.tar.gz"
    data = write_archive(archive, stored, size, seed=1)
    assert stored_by_tarfile(archive) == ("disk.raw", size, [(e.offset, e.length) for e in stored])
    subprocess.run(["tar", "-xzSf", archive, "-C", tmp_path], check=True)
    disk = tmp_path / "disk.raw"
    assert disk.stat().st_size == size
    with disk.open("rb") as file:
        found = []
        for extent in stored:
            file.seek(extent.offset)
            found.append(file.read(extent.length))
    assert b"".join(found) == data
    assert disk.stat().st_blocks * 512 <= sum(e.length for e in stored) + (1 << 20), "holes were filled"


def test_the_archive_is_one_gzip_member_that_gzip_accepts(tmp_path: Path) -> None:
    archive = tmp_path / "image.tar.gz"
    write_archive(archive, extents((0, 1 << 20), (1 << 22, 1 << 20)), GIB, seed=2)
    subprocess.run(["gzip", "--test", archive], check=True)
    assert archive.read_bytes().count(gzip_member.HEADER) == 1


def test_gnu_tar_agrees_that_the_format_is_its_own(tmp_path: Path) -> None:
    archive = tmp_path / "image.tar.gz"
    write_archive(archive, extents((4096, 4096)), GIB, seed=3)
    listed = subprocess.run(["tar", "-tvzf", archive], check=True, capture_output=True, text=True)
    assert "1073741824" in listed.stdout
    assert listed.stderr == ""


def test_a_failing_part_ends_the_work_with_its_own_error() -> None:
    def broken() -> gzip_member.Chunk:
        raise OSError("the base went away")

    with pytest.raises(OSError, match="the base went away"):
        gzip_member.write_member([lambda: gzip_member.deflate(b"a"), broken] * 10, io.BytesIO(), threads=2)


@pytest.mark.parametrize("unit", [4096, 65536, 1 << 22])
def test_pieces_hold_every_stored_byte_once_in_order(unit: int) -> None:
    stored = extents((0, 512), (4096, 4096), (10_000 * 512, 3 << 22), (20 << 22, 512))
    groups = list(sparse_tar.pieces(stored, unit))
    flat = [(e.offset, e.length) for group in groups for e in group]
    assert sum(length for _, length in flat) == sum(e.length for e in stored)
    assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(flat))
    assert max(sum(e.length for e in group) for group in groups) <= 2 * unit
