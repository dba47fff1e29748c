"""The header of a qcow2 image, versions 2 and 3 (QEMU: docs/interop/qcow2.txt)."""

from __future__ import annotations

import struct
from typing import NamedTuple

from tpu_image.disks.errors import DamagedError, UnsupportedError
from tpu_image.disks.source import BlockSource

MAGIC = b"QFI\xfb"

DIRTY, CORRUPT, EXTERNAL_DATA, COMPRESSION_TYPE, EXTENDED_L2 = (1 << bit for bit in range(5))
KNOWN_FEATURES = DIRTY | CORRUPT | EXTERNAL_DATA | COMPRESSION_TYPE | EXTENDED_L2

L1_SIZE_LIMIT = 32 * 1024 * 1024
"""Bytes of the first-level table, as in QEMU (``QCOW_MAX_L1_SIZE``, block/qcow2.h)."""

BACKING_NAME_LIMIT = 1023
BACKING_FORMAT_EXTENSION = 0xE2792ACA

_FIXED = struct.Struct(">4sIQIIQIIQQIIQ")
_VERSION_3 = struct.Struct(">QQQII")
_EXTENSION = struct.Struct(">II")

REPAIR = "repair a copy with: qemu-img check -r all"
FLATTEN = "flatten it with: qemu-img convert -O qcow2"


class Header(NamedTuple):
    """What reading needs of a header; sizes and offsets in bytes.

    Attributes:
        version: 2 or 3.
        cluster_bits: binary logarithm of the cluster size, 9 to 21.
        size: the disk's size.
        l1_entries: entries of the first-level table.
        l1_offset: where the first-level table starts in the file.
        extended_l2: each second-level entry has a bitmap of 32 subclusters.
        zstd: compressed clusters are zstd frames, otherwise raw deflate.
        backing_name: file that unallocated clusters are read from, as written; empty for none.
        backing_format: the backing file's format as written; empty where the header does not say.
    """

    version: int
    cluster_bits: int
    size: int
    l1_entries: int
    l1_offset: int
    extended_l2: bool = False
    zstd: bool = False
    backing_name: str = ""
    backing_format: str = ""

    @property
    def cluster_size(self) -> int:
        """Bytes of a cluster."""
        return 1 << self.cluster_bits

    @property
    def l2_entry_size(self) -> int:
        """Bytes of a second-level entry."""
        return 16 if self.extended_l2 else 8

    @property
    def l2_entries(self) -> int:
        """Entries of a second-level table, which fills one cluster."""
        return self.cluster_size // self.l2_entry_size


def read_header(file: BlockSource) -> Header:
    """Read and judge a header.

    Raises:
        UnsupportedError: a version, an incompatible feature or encryption that is not supported, by name.
        DamagedError: a value is out of its range or a table beyond the file.
    """
    data = file.read_at(0, min(file.size, 4096))
    if len(data) < _FIXED.size or data[:4] != MAGIC:
        raise DamagedError("is no qcow2 image, or is cut short", file.name)
    fields = _FIXED.unpack_from(data)
    _, version, backing_offset, backing_length, cluster_bits, size, encryption, l1_entries, l1_offset = (
        fields[:9]
    )
    if version not in (2, 3):
        raise UnsupportedError(f"qcow2 version {version}", file.name, FLATTEN)
    if not 9 <= cluster_bits <= 21:
        raise DamagedError(f"cluster_bits is {cluster_bits}, not 9 to 21", file.name)
    if encryption:
        raise UnsupportedError(
            f"is encrypted ({_ENCRYPTION.get(encryption, f'method {encryption}')})",
            file.name,
            "decrypt it first",
        )
    features, header_length, compression = 0, _FIXED.size, 0
    if version == 3:
        features, header_length, compression = _version_3_fields(file, data)
    _refuse_features(file, features)
    header = Header(
        version,
        cluster_bits,
        size,
        l1_entries,
        l1_offset,
        extended_l2=bool(features & EXTENDED_L2),
        zstd=compression == 1,
        backing_name=_backing_name(file, backing_offset, backing_length, 1 << cluster_bits),
        backing_format=_backing_format(file, header_length, backing_offset, 1 << cluster_bits),
    )
    _check_tables(file, header)
    return header


_ENCRYPTION = {1: "AES", 2: "LUKS"}

_REFUSED_FEATURES = {
    DIRTY: ("was not closed cleanly (dirty bit)", REPAIR),
    CORRUPT: ("is marked as corrupt", REPAIR),
    EXTERNAL_DATA: ("keeps its data in another file (external data file)", FLATTEN),
}


def _version_3_fields(file: BlockSource, data: bytes) -> tuple[int, int, int]:
    if len(data) < 104:
        raise DamagedError("header is cut short", file.name)
    features, _, _, _, header_length = _VERSION_3.unpack_from(data, 72)
    if header_length < 104 or header_length % 8 or header_length > len(data):
        raise DamagedError(f"header length is {header_length}", file.name)
    compression = data[104] if header_length > 104 else 0
    if bool(features & COMPRESSION_TYPE) != bool(compression):
        raise DamagedError(f"compression type {compression} contradicts the feature bits", file.name)
    if compression > 1:
        raise UnsupportedError(f"compression type {compression}", file.name, FLATTEN)
    return features, header_length, compression


def _refuse_features(file: BlockSource, features: int) -> None:
    for bit, (what, remedy) in _REFUSED_FEATURES.items():
        if features & bit:
            raise UnsupportedError(what, file.name, remedy)
    unknown = features & ~KNOWN_FEATURES
    if unknown:
        bits = ", ".join(str(bit) for bit in range(64) if unknown >> bit & 1)
        raise UnsupportedError(f"unknown incompatible qcow2 feature bit {bits}", file.name, FLATTEN)


def _backing_name(file: BlockSource, offset: int, length: int, cluster_size: int) -> str:
    if not offset:
        return ""
    if length > BACKING_NAME_LIMIT or offset + length > min(file.size, cluster_size):
        raise DamagedError("the name of the backing file is beyond the first cluster", file.name)
    return file.read_at(offset, length).decode("utf-8", "surrogateescape")


def _backing_format(file: BlockSource, offset: int, backing_offset: int, cluster_size: int) -> str:
    end = min(backing_offset or cluster_size, file.size)
    while offset + _EXTENSION.size <= end:
        kind, length = _EXTENSION.unpack(file.read_at(offset, _EXTENSION.size))
        offset += _EXTENSION.size
        if kind == 0:
            break
        if offset + length > end:
            raise DamagedError("a header extension is longer than the header", file.name)
        if kind == BACKING_FORMAT_EXTENSION:
            return file.read_at(offset, length).decode("utf-8", "surrogateescape")
        offset += (length + 7) & ~7
    return ""


def _check_tables(file: BlockSource, header: Header) -> None:
    if header.extended_l2 and header.cluster_bits < 14:
        raise DamagedError("extended L2 entries with clusters below 16 KiB", file.name)
    l1_bytes = header.l1_entries * 8
    if l1_bytes > L1_SIZE_LIMIT or header.l1_offset + l1_bytes > file.size:
        raise DamagedError(
            f"the L1 table of {header.l1_entries} entries is beyond the end of the file", file.name
        )
    if l1_bytes and header.l1_offset % header.cluster_size:
        raise DamagedError("the L1 table does not start at a cluster", file.name)
    if header.l1_entries * header.l2_entries * header.cluster_size < header.size:
        raise DamagedError(f"the L1 table is too small for a disk of {header.size} bytes", file.name)
