"""Writing a disk out: the archive for Compute Engine in one pass over the base."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from tpu_image.disks import gzip_member, sparse_tar
from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.source import Extent, ExtentKind

PIECE = 4 * 1024 * 1024
"""Bytes of the disk that one thread reads, decodes and deflates at a time."""


GAP = 64 * 1024
"""Bytes between stored parts below which they are written as one: a cluster of qcow2."""


@dataclass(frozen=True)
class ArchiveResult:
    """What was written: lengths in bytes, SHA-256 in hexadecimal (empty where it was not taken)."""

    size: int
    sha256: str
    stored: int


class _HashingSink:
    """Writes to a file and keeps the SHA-256 of what was written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def write(self, data: bytes, /) -> object:
        self._hash.update(data)
        return self._file.write(data)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def stored_extents(disk: EditedDisk) -> list[Extent]:
    """The parts of the disk that an archive must hold, in order: all that is not known to be zero.

    Gaps shorter than :data:`GAP` are held as zeros, so that no cluster of the base is decoded twice.
    """
    stored: list[Extent] = []
    for extent in disk.extents():
        if extent.kind is ExtentKind.ZERO:
            continue
        if stored and extent.offset - stored[-1].end < GAP:
            stored[-1] = Extent(stored[-1].offset, extent.end - stored[-1].offset, ExtentKind.DATA)
        else:
            stored.append(Extent(extent.offset, extent.length, ExtentKind.DATA))
    return stored


def write_archive(
    disk: EditedDisk,
    file: BinaryIO,
    *,
    modified: int,
    threads: int | None = None,
    report: Callable[[int, int], None] | None = None,
) -> ArchiveResult:
    """Write a disk as Compute Engine imports it.

    Args:
        disk: whole GiB long.
        file: an empty file, at its start.
        modified: the member's time, seconds since 1970.
        threads: how many decode and deflate; as many as there are cores by default.
        report: called with the bytes of input done and of output written.
    """
    stored = stored_extents(disk)
    sink = _HashingSink(file)
    size = gzip_member.write_member(
        _parts(disk, stored, modified),
        sink,
        threads=threads or os.cpu_count() or 1,
        report=report,
    )
    return ArchiveResult(size, sink.hexdigest(), sum(extent.length for extent in stored))


def write_raw(
    disk: EditedDisk, file: BinaryIO, *, report: Callable[[int, int], None] | None = None
) -> ArchiveResult:
    """Write a disk as it is into an empty file, leaving holes where nothing is stored; its SHA-256 is not taken."""
    stored = stored_extents(disk)
    done = 0
    for group in sparse_tar.pieces(stored, PIECE):
        for extent in group:
            file.seek(extent.offset)
            file.write(disk.read_at(extent.offset, extent.length))
            done += extent.length
        if report is not None:
            report(done, done)
    file.truncate(disk.size)
    return ArchiveResult(disk.size, "", done)


def _parts(disk: EditedDisk, stored: Sequence[Extent], modified: int) -> Iterator[Callable[[], bytes]]:
    yield functools.partial(sparse_tar.header, stored, disk.size, modified)
    for group in sparse_tar.pieces(stored, PIECE):
        yield functools.partial(_read, disk, group)
    yield lambda: sparse_tar.END


def _read(disk: EditedDisk, group: Sequence[Extent]) -> bytes:
    return b"".join(disk.read_at(extent.offset, extent.length) for extent in group)
