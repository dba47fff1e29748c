"""Writing a disk out: the archive for Compute Engine in one pass over the base."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

from tpu_image.disks import gzip_member, sparse_tar
from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.gzip_member import Chunk, deflate, joined, reuse
from tpu_image.disks.in_order import in_order
from tpu_image.disks.source import Extent, ExtentKind
from tpu_image.progress import SILENT, Progress

PIECE = 4 * 1024 * 1024
"""Bytes of the disk that one thread reads, decodes and deflates at a time."""

THREADS_LIMIT = 8
"""Threads unless told otherwise: each holds some 20 MiB, and the one that writes cannot follow more."""

EXTENTS_LIMIT = 100_000
"""Parts of a disk that are told apart."""

GAP = 64 * 1024
"""Bytes between stored parts below which they are written as one: a cluster of qcow2."""


@dataclass(frozen=True)
class ArchiveResult:
    """What was written: lengths in bytes (``stored``: of the disk, before deflating), SHA-256 in hexadecimal."""

    size: int
    sha256: str
    stored: int


class _HashingSink:
    """Writes to a file and keeps the SHA-256 of what was written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()

    def write(self, data: bytes | bytearray, /) -> object:
        self._hash.update(data)
        return self._file.write(data)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def stored_extents(disk: EditedDisk) -> list[Extent]:
    """The parts of the disk that an archive must hold, in order: all that is not known to be zero.

    Gaps shorter than :data:`GAP` are held as zeros, so that no cluster of the base is decoded twice; where there are
    very many parts, longer ones too.
    """
    gap = GAP
    stored: list[Extent] = []
    for extent in disk.extents():
        if extent.kind is ExtentKind.ZERO:
            continue
        _append(stored, extent, gap)
        while len(stored) > EXTENTS_LIMIT:
            gap *= 2
            stored = _with_gaps_closed(stored, gap)
    return stored


def _append(stored: list[Extent], extent: Extent, gap: int) -> None:
    if stored and extent.offset - stored[-1].end < gap:
        stored[-1] = Extent(stored[-1].offset, extent.end - stored[-1].offset, ExtentKind.DATA)
    else:
        stored.append(Extent(extent.offset, extent.length, ExtentKind.DATA))


def _with_gaps_closed(stored: Sequence[Extent], gap: int) -> list[Extent]:
    closed: list[Extent] = []
    for extent in stored:
        _append(closed, extent, gap)
    return closed


def write_archive(
    disk: EditedDisk,
    file: BinaryIO,
    *,
    modified: int,
    threads: int | None = None,
    progress: Progress = SILENT,
) -> ArchiveResult:
    """Write a disk as Compute Engine imports it.

    Args:
        disk: whole GiB long.
        file: an empty file, at its start.
        modified: the member's time, seconds since 1970.
        threads: how many decode and deflate; as many as there are cores by default.
        progress: is told how far it is.
    """
    stored = stored_extents(disk)
    total = sum(extent.length for extent in stored)
    sink = _HashingSink(file)
    size = gzip_member.write_member(
        _parts(disk, stored, modified),
        sink,
        threads=_threads(threads),
        report=lambda done: progress.at("writing", min(done, total), total),
    )
    return ArchiveResult(size, sink.hexdigest(), total)


def write_raw(
    disk: EditedDisk,
    file: BinaryIO,
    *,
    threads: int | None = None,
    progress: Progress = SILENT,
    stage: str = "writing",
    hashed: bool = True,
) -> ArchiveResult:
    """Write a disk as it is into an empty file, with holes where nothing is stored.

    Args:
        disk: what is written.
        file: open for writing.
        threads: that read; as many as there are processors by default.
        progress: is told how far that is, under the name ``stage``.
        stage: what it is called.
        hashed: whether the SHA-256 is wanted: holes take as long as what is stored.
    """
    stored = stored_extents(disk)
    total = sum(extent.length for extent in stored)
    digest = hashlib.sha256()
    done = position = 0
    pieces = in_order(
        lambda group: [(extent.offset, disk.read_at(extent.offset, extent.length)) for extent in group],
        sparse_tar.pieces(stored, PIECE),
        threads=_threads(threads),
    )
    with contextlib.closing(pieces):
        for piece in pieces:
            for offset, data in piece:
                if hashed:
                    _hash_zeros(digest, offset - position)
                    digest.update(data)
                file.seek(offset)
                file.write(data)
                position = offset + len(data)
                done += len(data)
            progress.at(stage, done, total)
    if hashed:
        _hash_zeros(digest, disk.size - position)
    file.truncate(disk.size)
    return ArchiveResult(disk.size, digest.hexdigest() if hashed else "", total)


def write_qcow2(
    disk: EditedDisk,
    file: BinaryIO,
    *,
    zstd: bool = False,
    threads: int | None = None,
    progress: Progress = SILENT,
) -> ArchiveResult:
    """Write a disk as qcow2 with compressed clusters into an empty file.

    Raises:
        UnsupportedError: zstd is asked for and its Python package is not installed.
    """
    from tpu_image.disks import qcow2_writer

    stored = qcow2_writer.write_qcow2(disk, file, zstd=zstd, threads=_threads(threads), progress=progress)
    # The header comes last, so the file is hashed when it is whole; what was written is still in memory.
    digest = hashlib.sha256()
    size, done = file.seek(0, 2), file.seek(0)
    while piece := file.read(PIECE):
        digest.update(piece)
        done += len(piece)
        progress.at("hashing", done, size)
    return ArchiveResult(size, digest.hexdigest(), stored)


def _hash_zeros(digest: hashlib._Hash, count: int) -> None:
    zeros = bytes(min(count, PIECE))
    while count:
        part = min(count, PIECE)
        digest.update(memoryview(zeros)[:part])
        count -= part


def _threads(wanted: int | None) -> int:
    return wanted or min(os.cpu_count() or 1, THREADS_LIMIT)


def _parts(disk: EditedDisk, stored: Sequence[Extent], modified: int) -> Iterator[Callable[[], Chunk]]:
    yield lambda: deflate(sparse_tar.header(stored, disk.size, modified))
    for group in sparse_tar.pieces(stored, PIECE):
        yield functools.partial(_pack, disk, group)
    yield lambda: deflate(sparse_tar.END)


def _pack(disk: EditedDisk, group: Sequence[Extent]) -> Chunk:
    """Deflate some extents, but for the units that the base holds deflated."""
    chunks: list[Chunk] = []
    plain: list[bytes] = []
    for offset, length, chunk in _cut(disk, group):
        if chunk is None:
            plain.append(disk.read_at(offset, length))
            continue
        if plain:
            chunks.append(deflate(b"".join(plain)))
            plain = []
        chunks.append(chunk)
    if plain:
        chunks.append(deflate(b"".join(plain)))
    return joined(chunks)


def _cut(disk: EditedDisk, group: Sequence[Extent]) -> Iterator[tuple[int, int, Chunk | None]]:
    """Cut extents at the units of the base: offset, length, and the chunk of a unit that is carried over."""
    unit = disk.base.unit
    for extent in group:
        start = position = extent.offset
        while position < extent.end:
            end = min((position // unit + 1) * unit, extent.end)
            stored = disk.stored_deflate(position) if end - position == unit else None
            chunk = None if stored is None else reuse(stored, unit)
            if chunk is not None:
                if start < position:
                    yield start, position - start, None
                yield position, unit, chunk
                start = end
            position = end
        if start < extent.end:
            yield start, extent.end - start, None
