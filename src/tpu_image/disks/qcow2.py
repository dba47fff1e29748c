"""A disk stored as qcow2: absent, zero, plain or compressed clusters, perhaps over a backing file."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterator
from itertools import groupby

from tpu_image.disks.cache import BoundedCache
from tpu_image.disks.errors import DamagedError
from tpu_image.disks.inflate import Decoder, deflate_decoder, zstd_decoder
from tpu_image.disks.qcow2_header import Header, read_header
from tpu_image.disks.source import BlockSource, Extent, ExtentKind

COMPRESSED_FLAG = 1 << 62
ZERO_FLAG = 1
OFFSET_MASK = 0x00FF_FFFF_FFFF_FE00

CLUSTER_CACHE = 32 * 1024 * 1024
"""Bytes of decoded clusters that are kept."""

L2_CACHE = 8 * 1024 * 1024
"""Bytes of second-level tables that are kept: they map 64 GiB at the usual cluster size."""

SUBCLUSTERS = 32
"""Parts of a cluster that an extended second-level entry tells apart."""

BackingOpener = Callable[[str, str], BlockSource]
"""Opens a backing file, given its name and format as the header has them (the format may be empty)."""


class Qcow2Source(BlockSource):
    """The active disk of a qcow2 image; snapshots inside it are not looked at. It owns its files."""

    def __init__(self, file: BlockSource, header: Header, backing: BlockSource | None = None) -> None:
        super().__init__(file.name, header.size, "qcow2")
        self.header = header
        self.unit = header.cluster_size
        self._file = file
        self._backing = backing
        self._l1 = read_l1(file, header)
        self._l2_tables: BoundedCache[int, array[int]] = BoundedCache(L2_CACHE, lambda table: 8 * len(table))
        self._decoded: BoundedCache[int, bytes] = BoundedCache(CLUSTER_CACHE, len)
        self._decoder: Decoder | None = None

    def close(self) -> None:
        """Close the image's file and those behind it."""
        self._file.close()
        if self._backing is not None:
            self._backing.close()

    def _read(self, offset: int, length: int) -> bytes:
        bits, size = self.header.cluster_bits, self.header.cluster_size
        inside = offset & (size - 1)
        if inside + length <= size:
            return self._read_cluster(offset >> bits, inside, length)
        parts = []
        while length:
            inside = offset & (size - 1)
            part = min(length, size - inside)
            parts.append(self._read_cluster(offset >> bits, inside, part))
            offset += part
            length -= part
        return b"".join(parts)

    def _read_cluster(self, cluster: int, inside: int, length: int) -> bytes:
        entry, bitmap = self._entry(cluster)
        if entry & COMPRESSED_FLAG:
            data = self._decode(entry, keep=length < self.header.cluster_size)
            return data[inside : inside + length]
        if not self.header.extended_l2:
            return self._read_plain(cluster, entry, inside, length)
        end = inside + length
        return b"".join(
            self._read_plain(cluster, subentry, max(start, inside), min(stop, end) - max(start, inside))
            for start, stop, subentry in self._subclusters(entry, bitmap)
            if start < end and stop > inside
        )

    def _read_plain(self, cluster: int, entry: int, inside: int, length: int) -> bytes:
        if entry & ZERO_FLAG:
            return bytes(length)
        host = entry & OFFSET_MASK
        if host:
            return self._read_host(host, inside, length)
        return self._read_backing((cluster << self.header.cluster_bits) + inside, length)

    def _read_host(self, host: int, inside: int, length: int) -> bytes:
        if host % self.header.cluster_size or host >= self._file.size:
            raise DamagedError(
                f"a cluster at byte {host} of the file is beyond its end or not aligned (cut short?)",
                self.name,
            )
        # The file may end within its last cluster; QEMU reads zeros there.
        stored = max(0, min(length, self._file.size - host - inside))
        data = self._file.read_at(host + inside, stored) if stored else b""
        return data if stored == length else data + bytes(length - stored)

    def _read_backing(self, offset: int, length: int) -> bytes:
        if self._backing is None or offset >= self._backing.size:
            return bytes(length)
        stored = min(length, self._backing.size - offset)
        data = self._backing.read_at(offset, stored)
        return data if stored == length else data + bytes(length - stored)

    def _decode(self, entry: int, *, keep: bool) -> bytes:
        # Whole clusters are what a stream over the disk reads: it never comes back, so they are not kept.
        data = self._decoded.get(entry)
        if data is not None:
            return data
        host, length = self._compressed_place(entry)
        if self._decoder is None:
            self._decoder = zstd_decoder(self.name) if self.header.zstd else deflate_decoder()
        try:
            data = self._decoder(self._file.read_at(host, length), self.header.cluster_size)
        except ValueError:
            data = b""
        if len(data) != self.header.cluster_size:
            raise DamagedError(
                f"the compressed cluster at byte {host} of the file cannot be decoded", self.name
            )
        if keep:
            self._decoded.put(entry, data)
        return data

    def stored_deflate(self, offset: int) -> bytes | None:
        """Give a cluster's compressed bytes, which end where those of the next cluster start."""
        header = self.header
        cluster, inside = divmod(offset, header.cluster_size)
        if inside or header.zstd or header.extended_l2 or offset + header.cluster_size > self.size:
            return None
        l1_index, index = divmod(cluster, header.l2_entries)
        table = self._l2_table(l1_index)
        if table is None or not table[index] & COMPRESSED_FLAG:
            return None
        host, length = self._compressed_place(table[index])
        following = table[index + 1] if index + 1 < len(table) else 0
        if following & COMPRESSED_FLAG:
            end = following & ((1 << (70 - header.cluster_bits)) - 1)
            if host < end < host + length:
                length = end - host
        return self._file.read_at(host, length)

    def _compressed_place(self, entry: int) -> tuple[int, int]:
        """Where a compressed cluster lies in the file, and how many bytes it has at most."""
        offset_bits = 62 - (self.header.cluster_bits - 8)
        host = entry & ((1 << offset_bits) - 1)
        sectors = ((entry & (COMPRESSED_FLAG - 1)) >> offset_bits) + 1
        length = min(sectors * 512 - (host & 511), self._file.size - host)
        if length <= 0:
            raise DamagedError(
                f"a compressed cluster at byte {host} of the file is beyond its end", self.name
            )
        return host, length

    def _entry(self, cluster: int) -> tuple[int, int]:
        """Give the second-level entry of a cluster and its subcluster bitmap (0 where there are none)."""
        l1_index, index = divmod(cluster, self.header.l2_entries)
        table = self._l2_table(l1_index)
        if table is None:
            return 0, 0
        if self.header.extended_l2:
            return table[2 * index], table[2 * index + 1]
        return table[index], 0

    def _l2_table(self, l1_index: int) -> array[int] | None:
        host = self._l1[l1_index] & OFFSET_MASK
        if not host:
            return None
        table = self._l2_tables.get(host)
        if table is None:
            size = self.header.cluster_size
            if host % size or host + size > self._file.size:
                raise DamagedError(f"an L2 table at byte {host} is beyond the end of the file", self.name)
            table = big_endian_words(self._file.read_at(host, size))
            self._l2_tables.put(host, table)
        return table

    def _subclusters(self, entry: int, bitmap: int) -> Iterator[tuple[int, int, int]]:
        """Give runs of equal subclusters: first byte, end, and the entry that a plain cluster would have."""
        allocated, zeros = bitmap & 0xFFFF_FFFF, bitmap >> 32
        host = entry & OFFSET_MASK
        if allocated & zeros or (allocated and not host):
            raise DamagedError("an extended L2 entry contradicts itself", self.name)
        if bitmap in (0, 0xFFFF_FFFF):
            yield 0, self.header.cluster_size, host if bitmap else 0
            return
        size = self.header.cluster_size // SUBCLUSTERS
        start = 0
        for index in range(SUBCLUSTERS):
            state = (allocated >> index & 1, zeros >> index & 1)
            following = (allocated >> (index + 1) & 1, zeros >> (index + 1) & 1)
            if index + 1 == SUBCLUSTERS or following != state:
                stop = (index + 1) * size
                yield start, stop, (host if state[0] else ZERO_FLAG if state[1] else 0)
                start = stop

    def _extents(self, start: int, end: int) -> Iterator[Extent]:
        span = self.header.l2_entries << self.header.cluster_bits
        while start < end:
            stop = min(end, (start // span + 1) * span)
            for first, last, kind in self._runs(start, stop):
                low, high = max(first, start), min(last, stop)
                if low >= high:
                    continue
                if kind is None:
                    yield from self._backing_extents(low, high)
                else:
                    yield Extent(low, high - low, kind)
            start = stop

    def _runs(self, start: int, end: int) -> Iterator[tuple[int, int, ExtentKind | None]]:
        """Give first byte, end and kind of each run of clusters in a part that one table maps.

        The runs may start before the part and end behind it; kind is None where the backing file decides.
        """
        size = self.header.cluster_size
        first, stop = start // size, -(-end // size)
        l1_index, index = divmod(first, self.header.l2_entries)
        table = self._l2_table(l1_index)
        if table is None:
            yield start, end, None
        elif self.header.extended_l2:
            for cluster in range(first, stop):
                yield from self._subcluster_runs(cluster * size, *self._entry(cluster))
        else:
            for kind, run in groupby(table[index : index + stop - first], kind_of_entry):
                last = first + sum(1 for _ in run)
                yield first * size, last * size, kind
                first = last

    def _subcluster_runs(
        self, base: int, entry: int, bitmap: int
    ) -> Iterator[tuple[int, int, ExtentKind | None]]:
        if entry & COMPRESSED_FLAG:
            yield base, base + self.header.cluster_size, ExtentKind.COMPRESSED
            return
        for first, stop, subentry in self._subclusters(entry, bitmap):
            yield base + first, base + stop, kind_of_entry(subentry)

    def _backing_extents(self, start: int, end: int) -> Iterator[Extent]:
        if self._backing is not None:
            yield from self._backing.extents(start, end)
            start = max(start, self._backing.size)
        if start < end:
            yield Extent(start, end - start, ExtentKind.ZERO)


def open_qcow2(file: BlockSource, open_backing: BackingOpener) -> Qcow2Source:
    """Make a disk of the qcow2 image in a file, opening its backing file through ``open_backing``.

    Raises:
        UnsupportedError, DamagedError: as :func:`~tpu_image.disks.qcow2_header.read_header` does.
    """
    header = read_header(file)
    backing = open_backing(header.backing_name, header.backing_format) if header.backing_name else None
    try:
        return Qcow2Source(file, header, backing)
    except DamagedError:
        if backing is not None:
            backing.close()
        raise


def read_l1(file: BlockSource, header: Header) -> array[int]:
    """Read the first-level table.

    Raises:
        DamagedError: two entries share a second-level table, which would let a small file claim a huge disk.
    """
    table = big_endian_words(file.read_at(header.l1_offset, header.l1_entries * 8))
    used = [entry & OFFSET_MASK for entry in table if entry & OFFSET_MASK]
    if len(used) > file.size // header.cluster_size or len(set(used)) < len(used):
        raise DamagedError("entries of the L1 table share an L2 table", file.name)
    return table


def kind_of_entry(entry: int) -> ExtentKind | None:
    """Tell what a second-level entry maps to; None where the backing file decides."""
    if entry & COMPRESSED_FLAG:
        return ExtentKind.COMPRESSED
    if entry & ZERO_FLAG:
        return ExtentKind.ZERO
    return ExtentKind.DATA if entry & OFFSET_MASK else None


def big_endian_words(data: bytes) -> array[int]:
    """Take a table of 64-bit big-endian words apart."""
    words = array("Q", data)
    if sys.byteorder == "little":
        words.byteswap()
    return words
