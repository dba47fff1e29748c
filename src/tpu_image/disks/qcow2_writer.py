"""Writing a disk as a qcow2 image of compressed clusters, in one pass by several threads.

Format: QEMU, docs/interop/qcow2.txt. Clusters are packed at whole bytes, one behind the other, as qemu-img does; those
that compression does not make smaller stand plain. The tables follow when all are known, the header comes last.
"""

from __future__ import annotations

import contextlib
import functools
import struct
import sys
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from isal import isal_zlib

from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.errors import UnsupportedError
from tpu_image.disks.gzip_member import ends_at
from tpu_image.disks.in_order import in_order
from tpu_image.disks.qcow2 import COMPRESSED_FLAG
from tpu_image.disks.qcow2_header import COMPRESSION_TYPE, MAGIC
from tpu_image.disks.source import ExtentKind
from tpu_image.progress import SILENT, Progress

CLUSTER_BITS = 16
CLUSTER = 1 << CLUSTER_BITS
"""Bytes of a cluster: QEMU's own choice, and that of most images, whose clusters can then be carried over."""

GROUP = 64
"""Clusters that one thread reads and compresses at a time."""

LEVEL = 1
"""Of igzip and of zstd: the next ones take longer for a few per cent (see benchmarks/build.py)."""

WINDOW = -12
"""Raw deflate with the history of 4 KiB that QEMU decodes with (block/qcow2-threads.c)."""

SECTOR = 512

PLAIN_FLAG = 1 << 63
"""A table or plain cluster that is referred to once (``QCOW_OFLAG_COPIED``)."""

REFERENCE_BITS = 16
REFERENCES = CLUSTER * 8 // REFERENCE_BITS
"""Clusters of the file that a block of reference counts covers."""

ENTRIES = CLUSTER // 8
"""Entries of a second-level table."""

_HEADER = struct.Struct(">4sIQIIQIIQQIIQQQQIIB7x8x")
HEADER_LENGTH = 112
"""Bytes of the header up to its extensions, of which there are none."""

_ZEROS = bytes(CLUSTER)

Compress = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Cluster:
    """A cluster of the disk as it will be stored."""

    number: int
    data: bytes
    compressed: bool


def write_qcow2(
    disk: EditedDisk,
    file: BinaryIO,
    *,
    zstd: bool = False,
    threads: int,
    progress: Progress = SILENT,
) -> int:
    """Write a disk into an empty file; ``progress`` is told how far it is.

    Returns:
        Bytes of the disk that were looked at.

    Raises:
        UnsupportedError: zstd is asked for and its Python package is not installed.
    """
    compress = _zstd_compressor(disk.name) if zstd else _deflate
    runs = list(_stored_runs(disk))
    total = sum(count for _, count in runs) << CLUSTER_BITS
    image = _Image(file, disk.size, zstd=zstd)
    groups = ((first + i, min(GROUP, count - i)) for first, count in runs for i in range(0, count, GROUP))
    done = 0
    pack = functools.partial(_pack, disk, compress, carry=not zstd)
    packed = in_order(lambda group: (group[1], pack(*group)), groups, threads=threads)
    with contextlib.closing(packed):
        for count, clusters in packed:
            image.add(clusters)
            done += count << CLUSTER_BITS
            progress.at("writing", done, total)
    image.finish()
    return total


def _stored_runs(disk: EditedDisk) -> Iterator[tuple[int, int]]:
    """First number and count of clusters, one after another, that hold something."""
    first = end = 0
    for extent in disk.extents():
        if extent.kind is ExtentKind.ZERO:
            continue
        start = max(extent.offset >> CLUSTER_BITS, end)
        if start > end:
            if end > first:
                yield first, end - first
            first = start
        end = max(end, -(-extent.end >> CLUSTER_BITS))
    if end > first:
        yield first, end - first


def _pack(disk: EditedDisk, compress: Compress, first: int, count: int, *, carry: bool) -> list[Cluster]:
    """Compress some clusters, but for those that are zero; what the base holds deflated is carried over."""
    packed = []
    carry = carry and disk.base.unit == CLUSTER
    for number in range(first, first + count):
        offset = number << CLUSTER_BITS
        stored = disk.stored_deflate(offset) if carry else None
        length = ends_at(stored, CLUSTER) if stored is not None else None
        if stored is not None and length is not None and length < CLUSTER:
            packed.append(Cluster(number, stored[:length], compressed=True))
            continue
        data = disk.read_at(offset, min(CLUSTER, disk.size - offset)).ljust(CLUSTER, b"\0")
        if data == _ZEROS:
            continue
        smaller = compress(data)
        compressed = len(smaller) < CLUSTER
        packed.append(Cluster(number, smaller if compressed else data, compressed))
    return packed


def _deflate(data: bytes) -> bytes:
    stream = isal_zlib.compressobj(LEVEL, isal_zlib.DEFLATED, WINDOW)
    return stream.compress(data) + stream.flush()


def _zstd_compressor(name: str) -> Compress:
    try:
        import zstandard
    except ImportError:
        raise UnsupportedError(
            "zstd is asked for and not installed", name, "install the Python package zstandard"
        ) from None
    return lambda data: zstandard.ZstdCompressor(level=LEVEL).compress(data)


class _Image:
    """The file as it grows: where the next bytes go, and what refers to them."""

    def __init__(self, file: BinaryIO, disk_size: int, *, zstd: bool) -> None:
        self._file = file
        self._disk_size = disk_size
        self._zstd = zstd
        self._tables: dict[int, array[int]] = {}
        self._references = array("H", [1])  # the header's cluster
        self._position = CLUSTER
        file.write(bytes(CLUSTER))

    @property
    def size(self) -> int:
        """Bytes of the file so far."""
        return len(self._references) << CLUSTER_BITS

    def add(self, clusters: list[Cluster]) -> None:
        """Write clusters, in one piece what lies together."""
        pending: list[bytes] = []
        start = self._position
        for cluster in clusters:
            offset = self._place(cluster)
            if offset != start + sum(map(len, pending)):
                self._write(start, pending)
                pending, start = [], offset
            pending.append(cluster.data)
        self._write(start, pending)

    def _write(self, start: int, pieces: list[bytes]) -> None:
        if pieces:
            self._file.seek(start)
            self._file.write(b"".join(pieces))

    def _place(self, cluster: Cluster) -> int:
        """Find the place for a cluster, refer to it, and count the reference."""
        table, index = divmod(cluster.number, ENTRIES)
        if table not in self._tables:
            self._tables[table] = array("Q", bytes(CLUSTER))
        if not cluster.compressed:
            offset = self._new_clusters(1)
            self._references[offset >> CLUSTER_BITS] = 1
            self._tables[table][index] = offset | PLAIN_FLAG
            return offset
        offset = self._room(len(cluster.data))
        self._position = offset + len(cluster.data)
        sectors = (self._position - 1) // SECTOR - offset // SECTOR
        for host in range(offset >> CLUSTER_BITS, ((self._position - 1) >> CLUSTER_BITS) + 1):
            self._references[host] += 1
        self._tables[table][index] = COMPRESSED_FLAG | sectors << (62 - (CLUSTER_BITS - 8)) | offset
        return offset

    def _room(self, length: int) -> int:
        """Find room for packed bytes: behind the last, unless plain clusters follow too soon."""
        free = -self._position % CLUSTER
        if length > free:
            at_end = self._position + free == self.size
            new = self._new_clusters(1)
            if not at_end:
                return new
        return self._position

    def _new_clusters(self, count: int) -> int:
        offset = self.size
        self._references.extend([0] * count)
        return offset

    def finish(self) -> None:
        """Write the tables, and the header that leads to them."""
        first_level = array("Q", bytes(8 * -(-self._disk_size // (CLUSTER * ENTRIES))))
        for number, table in sorted(self._tables.items()):
            first_level[number] = self._append(_big_endian(table)) | PLAIN_FLAG
        first_level_offset = self._append(_big_endian(first_level))
        blocks, clusters = self._reference_blocks()
        references_offset = self._write_references(blocks, clusters)
        header = _HEADER.pack(
            *(MAGIC, 3, 0, 0, CLUSTER_BITS, self._disk_size, 0),
            *(len(first_level), first_level_offset, references_offset, clusters, 0, 0),
            *(COMPRESSION_TYPE if self._zstd else 0, 0, 0),
            *(4, HEADER_LENGTH, int(self._zstd)),
        )
        self._write(0, [header])

    def _append(self, data: bytes) -> int:
        """Write a table at the end in clusters of its own."""
        count = max(1, -(-len(data) >> CLUSTER_BITS))
        offset = self._new_clusters(count)
        for host in range(offset >> CLUSTER_BITS, len(self._references)):
            self._references[host] = 1
        self._write(offset, [data.ljust(count << CLUSTER_BITS, b"\0")])
        return offset

    def _reference_blocks(self) -> tuple[int, int]:
        """How many blocks of reference counts the file needs, these included, and clusters for their table."""
        blocks = clusters = 1
        while blocks * REFERENCES < len(self._references) + blocks + clusters:
            blocks += 1
            clusters = -(-blocks * 8 >> CLUSTER_BITS)
        return blocks, clusters

    def _write_references(self, blocks: int, clusters: int) -> int:
        first = self._new_clusters(blocks + clusters)
        for host in range(first >> CLUSTER_BITS, len(self._references)):
            self._references[host] = 1
        counts = _big_endian(self._references).ljust(blocks << CLUSTER_BITS, b"\0")
        table = array("Q", [first + (index << CLUSTER_BITS) for index in range(blocks)])
        self._write(first, [counts, _big_endian(table).ljust(clusters << CLUSTER_BITS, b"\0")])
        return first + (blocks << CLUSTER_BITS)


def _big_endian(words: array[int]) -> bytes:
    if sys.byteorder == "little":
        words = words[:]
        words.byteswap()
    return words.tobytes()
