"""Where the partitions of a disk are: GPT, MBR with logical partitions, or none.

Layouts: UEFI Specification 2.10, chapter 5 ("GUID Partition Table"); type GUIDs: UAPI Group, "Discoverable
Partitions Specification".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from tpu_image.disks.errors import DamagedError, UnsupportedError
from tpu_image.disks.source import BlockSource, Section

ENTRIES_LIMIT = 4 * 1024 * 1024
"""Bytes of a GPT's entries; the usual table has 16 KiB."""

PARTITIONS_LIMIT = 256
"""Partitions of a disk, as in Linux (``DISK_MAX_PARTS``, include/linux/blkdev.h)."""

LOGICAL_LIMIT = 128
"""Logical partitions of an MBR that are looked for."""

_EXTENDED_TYPES = (0x05, 0x0F, 0x85)
PROTECTIVE_TYPE = 0xEE

GPT_HEADER = struct.Struct("<8sIIIIQQQQ16sQIII")
GPT_ENTRY = struct.Struct("<16s16sQQQ72s")
MBR_ENTRY = struct.Struct("<B3xB3xII")


class Partition(NamedTuple):
    """One partition: ``start`` and ``size`` in bytes, ``type`` a GUID in lower case, for MBR a byte such as ``0x83``.

    ``number`` counts as Linux does: by place in the table, logical ones from 5. ``uuid`` is what Linux calls
    PARTUUID, for MBR made of the disk's signature and the number.
    """

    number: int
    start: int
    size: int
    type: str
    uuid: str = ""
    name: str = ""
    attributes: int = 0


class PartitionTable(NamedTuple):
    """A disk's partitions by place in the table.

    Attributes:
        scheme: ``gpt``, ``mbr``, or ``none`` where the disk is not partitioned.
        sector_size: bytes of a sector as the table counts.
        uuid: the disk's own identifier.
        last_usable: last byte that partitions may occupy.
        backup: byte where the GPT's backup header was found; None where it was not.
        problems: what is wrong and did not prevent reading, each a phrase.
    """

    scheme: str
    sector_size: int
    partitions: tuple[Partition, ...]
    uuid: str = ""
    last_usable: int = 0
    backup: int | None = None
    problems: tuple[str, ...] = ()


class _GptCopy(NamedTuple):
    """One of a GPT's two copies, whose checksums are right: the sector of its header, and what that says."""

    lba: int
    alternate: int
    last_usable: int
    disk: bytes
    entry_size: int
    entries: bytes


class _Gpt(NamedTuple):
    """The copies of a GPT that are sound."""

    sector_size: int
    primary: _GptCopy | None
    backup: _GptCopy | None


def read_partition_table(source: BlockSource) -> PartitionTable:
    """Read the disk's partition table.

    Raises:
        DamagedError: the disk has a table that contradicts itself or leads beyond the disk.
        UnsupportedError: it has more than :data:`PARTITIONS_LIMIT` partitions.
    """
    first = source.read_at(0, min(512, source.size))
    gpt = _find_gpt(source, first)
    if gpt is not None:
        return _gpt_table(source, gpt)
    if len(first) == 512 and first[510:] == b"\x55\xaa":
        if any(kind == PROTECTIVE_TYPE for _, kind, _, _ in MBR_ENTRY.iter_unpack(first[446:510])):
            raise DamagedError("both copies of the GPT are damaged", source.name, "restore them with gdisk")
        if _is_mbr(first):
            return _mbr_table(source, first)
    return PartitionTable("none", 512, (), last_usable=source.size - 1)


def partition_source(source: BlockSource, partition: Partition) -> Section:
    """Give a partition's own bytes."""
    return Section(source, partition.start, partition.size, f"{source.name} partition {partition.number}")


def _find_gpt(source: BlockSource, first: bytes) -> _Gpt | None:
    # Once the disk was grown and the first copy lost, the protective MBR alone tells the old end.
    protective = [
        start + sectors - 1
        for _, kind, start, sectors in MBR_ENTRY.iter_unpack(first[446:510] if len(first) == 512 else b"")
        if kind == PROTECTIVE_TYPE
    ]
    for sector_size in (512, 4096):
        primary = _gpt_copy(source, sector_size, 1)
        ends = [source.size // sector_size - 1, *([primary.alternate] if primary else []), *protective]
        copies = (_gpt_copy(source, sector_size, lba) for lba in ends if lba > 1)
        backup = next((copy for copy in copies if copy), None)
        if primary or backup:
            return _Gpt(sector_size, primary, backup)
    return None


def _gpt_copy(source: BlockSource, sector_size: int, lba: int) -> _GptCopy | None:
    """Read one header and its entries; None unless both checksums are right."""
    from zlib import crc32

    if (lba + 1) * sector_size > source.size:
        return None
    sector = source.read_at(lba * sector_size, sector_size)
    fields = GPT_HEADER.unpack_from(sector)
    signature, _, header_size, header_crc, _, own, alternate, _, last_usable, disk = fields[:10]
    entries_lba, count, entry_size, entries_crc = fields[10:]
    if signature != b"EFI PART" or not 92 <= header_size <= sector_size or own != lba:
        return None
    if crc32(sector[:16] + bytes(4) + sector[20:header_size]) != header_crc:
        return None
    start, size = entries_lba * sector_size, count * entry_size
    if entry_size < 128 or entry_size % 8 or size > ENTRIES_LIMIT or start + size > source.size:
        return None
    entries = source.read_at(start, size)
    if crc32(entries) != entries_crc:
        return None
    return _GptCopy(lba, alternate, last_usable, disk, entry_size, entries)


def _gpt_problems(source: BlockSource, gpt: _Gpt) -> Iterator[str]:
    if gpt.primary is None:
        yield "the primary GPT is damaged, its backup is used"
    if gpt.backup is None:
        yield "the backup GPT is missing or damaged"
    elif gpt.backup.lba != source.size // gpt.sector_size - 1:
        yield "the backup GPT is not at the end of the disk"
    if gpt.primary and gpt.backup and gpt.primary.entries != gpt.backup.entries:
        yield "the two copies of the GPT differ, the primary is used"


def _gpt_table(source: BlockSource, gpt: _Gpt) -> PartitionTable:
    sector_size = gpt.sector_size
    copy = gpt.primary or gpt.backup
    assert copy is not None  # noqa: S101 - _find_gpt found one
    partitions: list[Partition] = []
    for index in range(len(copy.entries) // copy.entry_size):
        if len(partitions) > PARTITIONS_LIMIT:
            raise UnsupportedError(f"has more than {PARTITIONS_LIMIT} partitions", source.name, "remove some")
        kind, uuid, first, last, attributes, name = GPT_ENTRY.unpack_from(
            copy.entries, index * copy.entry_size
        )
        if kind == bytes(16):
            continue
        if first > last or (last + 1) * sector_size > source.size:
            raise DamagedError(
                f"partition {index + 1} is beyond the end of the disk (cut short?)", source.name
            )
        start, size = first * sector_size, (last - first + 1) * sector_size
        text = name.decode("utf-16-le", "replace").split("\0")[0]
        partitions.append(Partition(index + 1, start, size, guid(kind), guid(uuid), text, attributes))
    return PartitionTable(
        "gpt",
        sector_size,
        tuple(partitions),
        guid(copy.disk),
        (copy.last_usable + 1) * sector_size - 1,
        gpt.backup.lba * sector_size if gpt.backup else None,
        tuple(_gpt_problems(source, gpt)),
    )


def guid(data: bytes) -> str:
    """Write the 16 bytes of a GUID, whose first three fields are little-endian, in lower case."""
    a, b, c = struct.unpack("<IHH", data[:8])
    return f"{a:08x}-{b:04x}-{c:04x}-{data[8:10].hex()}-{data[10:].hex()}"


def _is_mbr(sector: bytes) -> bool:
    """Tell a partition table from the code that a boot sector of a file system has in its place."""
    entries = list(MBR_ENTRY.iter_unpack(sector[446:510]))
    used = [(start, sectors) for _, kind, start, sectors in entries if kind]
    return (
        all(flag in (0, 0x80) for flag, _, _, _ in entries)
        and bool(used)
        and all(start and sectors for start, sectors in used)
    )


def _mbr_table(source: BlockSource, sector: bytes) -> PartitionTable:
    signature = int.from_bytes(sector[440:444], "little")
    partitions = []
    logical: list[Partition] = []
    for index, (flag, kind, start, sectors) in enumerate(MBR_ENTRY.iter_unpack(sector[446:510])):
        if kind in _EXTENDED_TYPES:
            logical += _logical_partitions(source, signature, start, sectors, 5 + len(logical))
        elif kind:
            partitions.append(_mbr_partition(source, signature, index + 1, kind, start, sectors, flag))
    return PartitionTable(
        "mbr", 512, (*partitions, *logical), f"{signature:08x}", last_usable=source.size - 1
    )


def _logical_partitions(
    source: BlockSource, signature: int, base: int, sectors: int, number: int
) -> list[Partition]:
    """Follow the chain of extended boot records; each is relative to the first."""
    partitions: list[Partition] = []
    record, seen = base, set[int]()
    while record not in seen and len(seen) < LOGICAL_LIMIT:
        seen.add(record)
        if (record + 1) * 512 > source.size or not base <= record < base + sectors:
            raise DamagedError(
                f"an extended partition's record at sector {record} is out of range", source.name
            )
        data = source.read_at(record * 512, 512)
        if data[510:] != b"\x55\xaa":
            raise DamagedError(f"no extended boot record at sector {record}", source.name)
        entries = list(MBR_ENTRY.iter_unpack(data[446:478]))
        flag, kind, start, length = entries[0]
        if kind and length:
            at = number + len(partitions)
            partitions.append(_mbr_partition(source, signature, at, kind, record + start, length, flag))
        _, kind, start, _ = entries[1]
        if kind not in _EXTENDED_TYPES or not start:
            return partitions
        record = base + start
    raise DamagedError("the chain of logical partitions does not end", source.name)


def _mbr_partition(
    source: BlockSource, signature: int, number: int, kind: int, start: int, sectors: int, flag: int
) -> Partition:
    if (start + sectors) * 512 > source.size:
        raise DamagedError(
            f"partition {number} is beyond the end of the disk (cut short?)",
            source.name,
        )
    uuid = f"{signature:08x}-{number:02x}"
    # The flag "active" of an MBR is the attribute "legacy BIOS bootable" of a GPT (UEFI 5.3.3, bit 2).
    return Partition(
        number, start * 512, sectors * 512, f"{kind:#04x}", uuid, attributes=4 if flag & 0x80 else 0
    )
