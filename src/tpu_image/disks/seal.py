"""Making a disk one that Compute Engine imports: whole GiB, the GPT's backup at its end, the root grown if asked.

Compute Engine wants disks of whole GiB (its page "Manually import boot disks"); growing leaves the backup GPT where the
end was, which firmware and sfdisk(8) complain of. Layout: UEFI Specification 2.10, section 5.3.
"""

from __future__ import annotations

import re
import struct

from tpu_image.disks.edited import EditedDisk, EditedSection
from tpu_image.disks.errors import DamagedError, UnsupportedError
from tpu_image.disks.partitions import (
    GPT_ENTRY,
    GPT_HEADER,
    MBR_ENTRY,
    PROTECTIVE_TYPE,
    Partition,
    PartitionTable,
    read_partition_table,
)

GIB = 1 << 30

PRIMARY_LBA = 1

PRIMARY_PARTITIONS = 4
"""Partitions that have an entry in the MBR itself."""

LEAVE = "leave --size out"

_SIZE = re.compile(r"([0-9]{1,9})([MGT])(?:iB)?", re.IGNORECASE)
_UNITS = {"M": 1 << 20, "G": GIB, "T": 1 << 40}


def parse_size(text: str) -> int:
    """Read the size of a disk, such as ``20G``, ``20GiB`` or ``20480M``, in bytes.

    Raises:
        ValueError: it is none, or no whole number of GiB; the message says how to write one.
    """
    found = _SIZE.fullmatch(text)
    size = int(found[1]) * _UNITS[found[2].upper()] if found else 0
    if not size or size % GIB:
        raise ValueError(f"{text!r} is no size of a disk: give whole GiB, such as 20G or 20480M")
    return size


def whole_gib(size: int) -> int:
    """Round a size in bytes up to whole GiB."""
    return -(-size // GIB) * GIB


def move_backup_gpt(disk: EditedDisk) -> bool:
    """Bring both copies of the GPT in line with the disk's end; False where they were, or there is no GPT.

    The sound copy serves for both, so a damaged one is repaired on the way.

    Raises:
        DamagedError: there is a GPT and neither copy is sound, or a partition lies where a copy belongs.
    """
    table = read_partition_table(disk)
    if table.scheme != "gpt" or not table.problems:
        return False
    sector = table.sector_size
    header, is_primary = _sound_header(disk, table)
    entries = _entries(disk, header, sector)
    # The primary's entries may stand apart from their header: boot code of some boards needs the place between.
    first_entries = GPT_HEADER.unpack_from(header)[10] if is_primary else PRIMARY_LBA + 1
    _check_places(disk, table, first_entries * sector, len(entries))
    _write(disk, header, first_entries, entries, sector)
    _clear_stale_backup(disk, table, len(entries))
    _write_protective_mbr(disk, sector)
    return True


def _sound_header(disk: EditedDisk, table: PartitionTable) -> tuple[bytes, bool]:
    """The header sector of the copy that read_partition_table chose, and whether that is the primary."""
    first_damaged = any(problem.startswith("the primary GPT") for problem in table.problems)
    use_backup = first_damaged and table.backup is not None
    offset = table.backup if use_backup and table.backup is not None else table.sector_size
    return disk.read_at(offset, table.sector_size), not use_backup


def _entries(disk: EditedDisk, header: bytes, sector: int) -> bytes:
    """The entries that a header leads to, in whole sectors."""
    fields = GPT_HEADER.unpack_from(header)
    entries_lba, count, entry_size = fields[10:13]
    size = -(-count * entry_size // sector) * sector
    return disk.read_at(entries_lba * sector, size)


def _check_places(disk: EditedDisk, table: PartitionTable, first_entries: int, size: int) -> None:
    """Refuse to write a copy of the GPT over a partition."""
    sector = table.sector_size
    places = (
        (0, sector * (PRIMARY_LBA + 1)),
        (first_entries, first_entries + size),
        (disk.size - sector - size, disk.size),
    )
    for start, end in places:
        partition = _partition_within(table, start, end)
        if partition is not None:
            raise DamagedError(
                f"partition {partition.number} lies where the GPT belongs", disk.name, "move or shrink it"
            )


def _partition_within(table: PartitionTable, start: int, end: int) -> Partition | None:
    within = (p for p in table.partitions if p.start < end and start < p.start + p.size)
    return next(within, None)


def _write(disk: EditedDisk, header: bytes, first_entries: int, entries: bytes, sector: int) -> None:
    """Write entries and header at both places."""
    from zlib import crc32

    fields = list(GPT_HEADER.unpack_from(header))
    header_size, count, entry_size = fields[2], fields[11], fields[12]
    last = disk.size // sector - 1
    table_sectors = len(entries) // sector
    fields[8] = last - table_sectors - 1
    fields[13] = crc32(entries[: count * entry_size])
    places = ((PRIMARY_LBA, last, first_entries), (last, PRIMARY_LBA, last - table_sectors))
    for own, alternate, entries_lba in places:
        fields[3], fields[5], fields[6], fields[10] = 0, own, alternate, entries_lba
        data = bytearray(GPT_HEADER.pack(*fields).ljust(header_size, b"\0"))
        struct.pack_into("<I", data, 16, crc32(bytes(data)))
        disk.write_at(own * sector, bytes(data).ljust(sector, b"\0"))
        disk.write_at(entries_lba * sector, entries)


def _clear_stale_backup(disk: EditedDisk, table: PartitionTable, size: int) -> None:
    """Take away the backup that is no longer at the end, unless something else stands there."""
    sector = table.sector_size
    if table.backup is None:
        return
    start, end = table.backup - size, table.backup + sector
    behind_tables = sector * (PRIMARY_LBA + 1) + size
    if (
        behind_tables <= start
        and end <= disk.size - sector - size
        and not _partition_within(table, start, end)
    ):
        disk.write_at(start, bytes(end - start))


def _write_protective_mbr(disk: EditedDisk, sector: int) -> None:
    data = bytearray(disk.read_at(0, 512))
    for offset in range(446, 510, MBR_ENTRY.size):
        _, kind, start, _ = MBR_ENTRY.unpack_from(data, offset)
        if kind == PROTECTIVE_TYPE:
            length = max(0, min(disk.size // sector - start, 0xFFFF_FFFF))
            struct.pack_into("<I", data, offset + 12, length)
    disk.write_at(0, bytes(data))


def grow_root(disk: EditedDisk) -> None:
    """Let the root's partition and its file system reach the end of the disk.

    Call :func:`move_backup_gpt` first.

    Raises:
        UnsupportedError: the partition or the file system has a form that is not grown; named.
        DamagedError: what is there contradicts itself.
    """
    from tpu_image.disks.ext4.grow import grow
    from tpu_image.disks.image_tree import open_tree

    tree = open_tree(disk)
    root = tree.root.volume
    start, size = 0, disk.size
    if root.partition is not None:
        start, size = root.partition.start, grow_partition(disk, tree.table, root.partition)
    grow(EditedSection(disk, start, size, root.source.name))


def grow_partition(disk: EditedDisk, table: PartitionTable, partition: Partition) -> int:
    """Let a partition reach the last usable sector; return its new size in bytes.

    Call :func:`move_backup_gpt` first and give the table as read afterwards.

    Raises:
        UnsupportedError: another partition lies behind this one, or it is a logical one.
    """
    behind = [other for other in table.partitions if other.start > partition.start]
    if behind:
        raise UnsupportedError(
            f"partition {behind[0].number} lies behind the root partition {partition.number}",
            disk.name,
            LEAVE,
        )
    return (_grow_in_gpt if table.scheme == "gpt" else _grow_in_mbr)(disk, table, partition)


def _grow_in_gpt(disk: EditedDisk, table: PartitionTable, partition: Partition) -> int:
    sector = table.sector_size
    header = disk.read_at(sector * PRIMARY_LBA, sector)
    first_entries = GPT_HEADER.unpack_from(header)[10]
    entries = bytearray(_entries(disk, header, sector))
    offset = (partition.number - 1) * GPT_HEADER.unpack_from(header)[12]
    fields = list(GPT_ENTRY.unpack_from(entries, offset))
    # Whole 4 KiB, so that every block of the file system is on the partition.
    end = (table.last_usable + 1) // 4096 * 4096
    fields[3] = end // sector - 1
    GPT_ENTRY.pack_into(entries, offset, *fields)
    _write(disk, header, first_entries, bytes(entries), sector)
    return end - partition.start


def _grow_in_mbr(disk: EditedDisk, table: PartitionTable, partition: Partition) -> int:
    """Set the entry's number of sectors; what is beyond 32 bits of them stays unused."""
    data = bytearray(disk.read_at(0, 512))
    start = partition.start // table.sector_size
    others = [entry[2] for entry in MBR_ENTRY.iter_unpack(data[446:510]) if entry[1] and entry[2] > start]
    if partition.number > PRIMARY_PARTITIONS or others:
        raise UnsupportedError("the root is in or before an extended partition", disk.name, LEAVE)
    sectors = min(disk.size // table.sector_size - start, 0xFFFF_FFFF)
    struct.pack_into("<I", data, 446 + (partition.number - 1) * MBR_ENTRY.size + 12, sectors)
    disk.write_at(0, bytes(data))
    return sectors * table.sector_size
