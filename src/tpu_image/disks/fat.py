"""FAT12, FAT16 and FAT32 with long names, as the EFI system partition has them: a tree for reading.

Layout: Microsoft, "FAT32 File System Specification" 1.03; UEFI Specification 2.10, 13.3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from tpu_image.disks.cache import BoundedCache
from tpu_image.disks.errors import DamagedError, DiskError
from tpu_image.disks.source import BlockSource
from tpu_image.trees.base import (
    Entry,
    Kind,
    NotAFileError,
    NotFoundError,
    NotReadableError,
    TooLargeError,
    Tree,
)

DIRECTORY_LIMIT = 65536 * 32
"""Bytes of a directory, which the specification holds to 65,536 entries."""

MODE = 0o755
"""Permission bits of everything: FAT stores none, and this is what mount(8) makes of it by default."""

_DIRECTORY, _LABEL, _LONG_NAME = 0x10, 0x08, 0x0F
_SHORT_ENTRY = struct.Struct("<11sBB7xH4xHI")
_TABLE_CACHE = 1024 * 1024
_DIRECTORIES_KEPT = 20_000


class Geometry(NamedTuple):
    """Where the parts of a FAT are: offsets and sizes in bytes, ``bits`` of a table entry 12, 16 or 32."""

    bits: int
    cluster_size: int
    clusters: int
    table: int
    table_size: int
    root: int
    root_size: int
    root_cluster: int
    data: int
    serial: bytes
    label: bytes


class _Node(NamedTuple):
    """A directory entry; the root has cluster 0 where it is no chain of clusters."""

    name: str
    attributes: int
    cluster: int
    size: int

    @property
    def is_directory(self) -> bool:
        return bool(self.attributes & _DIRECTORY)


def geometry_of(sector: bytes) -> Geometry | None:
    """Read a boot sector; None where it is none of a FAT."""
    if len(sector) < 512 or sector[510:512] != b"\x55\xaa" or sector[0] not in (0xEB, 0xE9):
        return None
    size, per_cluster, reserved, tables, root_entries, total = struct.unpack_from("<HBHBHH", sector, 11)
    table_sectors, total_32, table_sectors_32 = struct.unpack_from("<H8xII", sector, 22)
    total, table_sectors_16 = total or total_32, table_sectors
    table_sectors = table_sectors or table_sectors_32
    if size not in (512, 1024, 2048, 4096) or per_cluster not in (1, 2, 4, 8, 16, 32, 64, 128):
        return None
    if not reserved or not tables or not table_sectors or sector[21] < 0xF0:
        return None
    root_sectors = -(-root_entries * 32 // size)
    root = reserved + tables * table_sectors
    clusters = (total - root - root_sectors) // per_cluster
    if clusters < 1:
        return None
    bits = 32 if not table_sectors_16 else 12 if clusters < 4085 else 16
    extended = 67 if bits == 32 else 39
    return Geometry(
        bits,
        per_cluster * size,
        clusters,
        reserved * size,
        table_sectors * size,
        root * size,
        root_sectors * size,
        struct.unpack_from("<I", sector, 44)[0] if bits == 32 else 0,
        (root + root_sectors) * size,
        sector[extended : extended + 4],
        sector[extended + 4 : extended + 15],
    )


class FatTree(Tree):
    """The files of a FAT file system. Names are found whatever their case, as mounted ones are."""

    def __init__(self, source: BlockSource, geometry: Geometry) -> None:
        super().__init__()
        self._source = source
        self._geometry = geometry
        self._table: BoundedCache[int, bytes] = BoundedCache(_TABLE_CACHE, len)
        self._directories: BoundedCache[int, dict[str, _Node]] = BoundedCache(_DIRECTORIES_KEPT, len)

    def lstat_canonical(self, path: str) -> Entry | None:
        """Describe the file or directory at the path."""
        node = self._find(path)
        if node is None:
            return None
        if node.is_directory:
            return Entry(Kind.DIRECTORY, MODE)
        return Entry(Kind.FILE, MODE, size=node.size)

    def read_canonical(self, path: str, limit: int) -> bytes:
        """Read the file at the path."""
        node = self._find(path)
        if node is None:
            raise NotFoundError(path)
        if node.is_directory:
            raise NotAFileError(path, "is a directory, not a regular file")
        if node.size > limit:
            raise TooLargeError(path, f"is larger than {limit} bytes")
        try:
            return self._content(node)
        except DiskError as error:
            raise NotReadableError(path, error.what) from None

    def list_canonical(self, path: str) -> list[str]:
        """Names in the directory at the path."""
        node = self._find(path)
        if node is None or not node.is_directory:
            return []
        return [child.name for child in self._children(path, node).values()]

    def label(self) -> str:
        """The volume's label: the root directory's, otherwise the boot sector's."""
        raw = self._geometry.label
        try:
            for entry in _entries(self._root_data()):
                if entry[11] & _LONG_NAME != _LONG_NAME and entry[11] & _LABEL and entry[0] != 0xE5:
                    raw = entry[:11]
                    break
        except DiskError:
            pass
        text = raw.decode("cp437").rstrip()
        return "" if text == "NO NAME" else text

    def _find(self, path: str) -> _Node | None:
        node = _Node("/", _DIRECTORY, 0, 0)
        for part in path.split("/"):
            if not part:
                continue
            if not node.is_directory:
                return None
            child = self._children(path, node).get(part.casefold())
            if child is None:
                return None
            node = child
        return node

    def _children(self, path: str, node: _Node) -> dict[str, _Node]:
        children = self._directories.get(node.cluster)
        if children is None:
            try:
                data = self._directory_data(node)
            except DiskError as error:
                raise NotReadableError(path, error.what) from None
            children = {child.name.casefold(): child for child in _nodes(data)}
            self._directories.put(node.cluster, children)
        return children

    def _root_data(self) -> bytes:
        geometry = self._geometry
        if geometry.bits == 32:
            return self._chain(geometry.root_cluster, DIRECTORY_LIMIT, whole=False)
        return self._source.read_at(geometry.root, geometry.root_size)

    def _directory_data(self, node: _Node) -> bytes:
        # Cluster 0 means the root, as "..", which is left out, has it.
        return self._chain(node.cluster, DIRECTORY_LIMIT, whole=False) if node.cluster else self._root_data()

    def _content(self, node: _Node) -> bytes:
        return self._chain(node.cluster, node.size, whole=True) if node.size else b""

    def _chain(self, cluster: int, length: int, *, whole: bool) -> bytes:
        """Read a chain of clusters up to ``length`` bytes; where ``whole``, it must have them all."""
        geometry = self._geometry
        parts = []
        for _ in range(min(geometry.clusters, -(-length // geometry.cluster_size))):
            if not 2 <= cluster < geometry.clusters + 2:
                raise DamagedError(f"cluster {cluster} is out of range", self._source.name)
            offset = geometry.data + (cluster - 2) * geometry.cluster_size
            parts.append(self._source.read_at(offset, geometry.cluster_size))
            cluster = self._next(cluster)
            if cluster >= (1 << min(geometry.bits, 28)) - 8:
                break
        data = b"".join(parts)[:length]
        if whole and len(data) < length:
            raise DamagedError("its chain of clusters is shorter than its size", self._source.name)
        return data

    def _next(self, cluster: int) -> int:
        bits = self._geometry.bits
        at = cluster * bits // 8
        value = int.from_bytes(self._table_bytes(at, 4 if bits == 32 else 2), "little")
        if bits == 12:
            return value >> 4 if cluster & 1 else value & 0xFFF
        return value & 0x0FFF_FFFF

    def _table_bytes(self, at: int, length: int) -> bytes:
        if at + length > self._geometry.table_size:
            raise DamagedError("the allocation table is too short", self._source.name)
        size = 4096
        data = b""
        for index in range(at // size, (at + length - 1) // size + 1):
            page = self._table.get(index)
            if page is None:
                stored = min(size, self._geometry.table_size - index * size)
                page = self._source.read_at(self._geometry.table + index * size, stored)
                self._table.put(index, page)
            data += page
        return data[at % size : at % size + length]


def _entries(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data) - 31, 32):
        if not data[start]:
            return
        yield data[start : start + 32]


def _nodes(data: bytes) -> Iterator[_Node]:
    """Read a directory's entries with their long names; ``.``, ``..`` and names with ``/`` are left out."""
    pieces: list[bytes] = []
    checksum = -1
    for entry in _entries(data):
        attributes = entry[11]
        if entry[0] == 0xE5:
            pieces = []
        elif attributes & 0x3F == _LONG_NAME:
            if entry[0] & 0x40:
                pieces, checksum = [], entry[13]
            if entry[13] == checksum and len(pieces) < 20:
                pieces.insert(0, entry[1:11] + entry[14:26] + entry[28:32])
        else:
            short, _, case, high, low, size = _SHORT_ENTRY.unpack(entry)
            name = _long_name(pieces) if pieces and _checksum(short) == checksum else _short_name(short, case)
            pieces = []
            if (
                not attributes & _LABEL
                and name not in (".", "..", "")
                and "/" not in name
                and "\0" not in name
            ):
                yield _Node(name, attributes, (high << 16 | low) & 0x0FFF_FFFF, size)


def _long_name(pieces: list[bytes]) -> str:
    return b"".join(pieces).decode("utf-16-le", "replace").split("\0")[0]


def _short_name(short: bytes, case: int) -> str:
    """Join base and extension; the bits 8 and 16 of ``case`` say that they are in lower case (Windows NT)."""
    raw = (b"\xe5" + short[1:]) if short[0] == 0x05 else short
    base, extension = raw[:8].decode("cp437").rstrip(), raw[8:].decode("cp437").rstrip()
    base = base.lower() if case & 0x08 else base
    extension = extension.lower() if case & 0x10 else extension
    return f"{base}.{extension}" if extension else base


def _checksum(short: bytes) -> int:
    value = 0
    for byte in short:
        value = ((value & 1) << 7 | value >> 1) + byte & 0xFF
    return value


def open_fat(source: BlockSource) -> FatTree:
    """Make a tree of the FAT file system in a partition.

    Raises:
        DamagedError: its boot sector is not one.
    """
    geometry = geometry_of(source.read_at(0, min(512, source.size)))
    if geometry is None:
        raise DamagedError("the boot sector of the FAT file system is damaged", source.name)
    return FatTree(source, geometry)
