"""Growing an ext4 that is not mounted: new block groups behind the old ones, and nothing moved.

A new group keeps its bitmaps and inode table in itself, which every feature set allows. Where descriptors carry
checksums it is left uninitialised, as mke2fs(8) leaves it, so that a growth by a TiB changes a few blocks.
Layout: Linux, Documentation/filesystems/ext4/group_descr.rst and special_inodes.rst; ``struct ext4_super_block``,
fs/ext4/ext4.h.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from tpu_image.disks.edited import EditedSection
from tpu_image.disks.ext4.bitmaps import Bitmaps
from tpu_image.disks.ext4.edit_groups import Group
from tpu_image.disks.ext4.features import (
    COMPATIBLE_RESIZE_INODE,
    READ_ONLY_GDT_CHECKSUM,
    READ_ONLY_METADATA_CHECKSUM,
)
from tpu_image.disks.ext4.filesystem import BLOCK_UNINITIALISED, INODE_UNINITIALISED, Ext4FileSystem
from tpu_image.disks.ext4.growth import grown, refuse
from tpu_image.disks.ext4.metadata_zone import MetadataZone
from tpu_image.disks.ext4.resize_inode import write_resize_inode
from tpu_image.disks.ext4.superblock import OFFSET, SIZE, Superblock, sealed

INODE_TABLE_ZERO = 0x4
"""The inode table holds zeros (``EXT4_BG_INODE_ZEROED``)."""

MOUNTED_CLEANLY = 0x1
"""``EXT4_VALID_FS``, which copies of the superblock do not carry (``ext2fs_flush``)."""


def grow(section: EditedSection) -> int:
    """Let the ext4 of a partition fill it; give the bytes it has then.

    What lies behind the file system is taken for free, and the disk reads as zero there.

    Raises:
        UnsupportedError: a form that growing does not keep right, or more than the format can count; named.
        DamagedError: the file system contradicts itself.
    """
    filesystem = Ext4FileSystem(section)
    refuse(filesystem.superblock, section.name)
    old = filesystem.superblock
    new = grown(old, section.size // old.block_size, section.name)
    if new.blocks > old.blocks:
        MetadataZone(filesystem, Bitmaps(filesystem))  # judges where everything is
        section.cut_base(old.blocks * old.block_size)
        _Growth(section, filesystem, new).write()
    return new.blocks * new.block_size


class _Growth:
    """One growth, written part by part."""

    def __init__(self, section: EditedSection, filesystem: Ext4FileSystem, new: Superblock) -> None:
        self._section = section
        self._filesystem = filesystem
        self._old = filesystem.superblock
        self._new = new
        self._free_blocks = 0

    def write(self) -> None:
        """Write descriptors, bitmaps, the resize inode, the superblock, and all copies."""
        table = bytearray()
        for number in range(self._new.groups):
            table += self._group(number).descriptor
        # Read through the old descriptors, so it comes before the new ones are written.
        if self._old.compatible & COMPATIBLE_RESIZE_INODE:
            self._free_blocks += write_resize_inode(self._section, self._filesystem, self._new, table)
        self._write_descriptors(table)
        self._write_superblocks()

    def _group(self, number: int) -> Group:
        if number >= self._old.groups:
            return self._new_group(number)
        self._filesystem.group(number)  # judges it
        offset = self._filesystem.descriptor_offset(number)
        group = Group(number, self._section.read_at(offset, self._old.descriptor_size))
        if number == self._old.groups - 1:
            self._fill_up(group)
        return group

    def _fill_up(self, group: Group) -> None:
        """Give the last of the old groups the blocks that it lacks to be whole."""
        before, after = self._old.blocks_of(group.number), self._new.blocks_of(group.number)
        if after == before:
            return
        used = Bitmaps(self._filesystem).block_bitmap(group.number) & _ones(0, before)
        group.put(12, 44, group.free_blocks + after - before)
        self._free_blocks += after - before
        if group.flags & BLOCK_UNINITIALISED and group.number < self._new.groups - 1:
            group.seal(self._new)
            return
        group.clear(BLOCK_UNINITIALISED)
        self._write_block_bitmap(group, used, after)
        group.seal(self._new)

    def _write_block_bitmap(self, group: Group, used: int, inside: int) -> None:
        used |= _ones(inside, 8 * self._new.block_size)
        data = used.to_bytes(self._new.block_size, "little")
        group.write_block_bitmap(self._section, self._new, data)

    def _new_group(self, number: int) -> Group:
        new, group = self._new, Group(number, bytes(self._new.descriptor_size))
        base, inside = new.base_blocks(number), new.blocks_of(number)
        start = new.first_block_of(number) + base
        overhead = base + 2 + new.inode_table_blocks
        if overhead > inside:
            raise self._filesystem.damaged("a block group has no room for what describes it")
        for (low, high), block in zip(
            ((0, 32), (4, 36), (8, 40)), (start, start + 1, start + 2), strict=True
        ):
            group.put(low, high, block, width=4)
        group.put(12, 44, inside - overhead)
        group.put(14, 46, new.inodes_per_group)
        self._free_blocks += inside - overhead
        if new.read_only & (READ_ONLY_METADATA_CHECKSUM | READ_ONLY_GDT_CHECKSUM):
            # The bitmap of the last group is always there: what is beyond the end is marked in it.
            lazy = BLOCK_UNINITIALISED if number < new.groups - 1 else 0
            struct.pack_into("<H", group.descriptor, 18, lazy | INODE_UNINITIALISED | INODE_TABLE_ZERO)
            group.put(28, 50, new.inodes_per_group)
        if not group.flags & BLOCK_UNINITIALISED:
            self._write_block_bitmap(group, _ones(0, overhead), inside)
        if not group.flags & INODE_UNINITIALISED:
            beyond = _ones(new.inodes_per_group, 8 * new.block_size)
            group.write_inode_bitmap(self._section, new, beyond.to_bytes(new.block_size, "little"))
        group.seal(new)
        return group

    def _write_descriptors(self, table: bytearray) -> None:
        new, size = self._new, self._new.block_size
        whole = bytes(table).ljust(-(-len(table) // size) * size, b"\0")
        for index in range(len(whole) // size):
            for block in self._descriptor_blocks(index):
                self._section.write_at(block * size, whole[index * size : (index + 1) * size])
        for index in range(len(whole) // size, new.descriptor_blocks):
            for block in self._descriptor_blocks(index):
                self._section.write_at(block * size, bytes(size))

    def _descriptor_blocks(self, index: int) -> Iterator[int]:
        """Blocks that hold one block of the descriptor table: the first, and its copies."""
        new = self._new
        first = index * new.groups_per_block
        if new.in_meta_group(first):
            for group in (first, first + 1, first + new.groups_per_block - 1):
                if group < new.groups:
                    yield new.first_block_of(group) + new.group_has_backup(group)
            return
        for group in range(new.groups):
            if new.group_has_backup(group) and not new.in_meta_group(group):
                yield new.first_block_of(group) + 1 + index

    def _write_superblocks(self) -> None:
        old, new = self._old, self._new
        data = bytearray(self._section.read_at(OFFSET, SIZE))
        reserved = _get(data, 8, 340) * new.blocks // old.blocks
        _put(data, 4, 336, new.blocks)
        _put(data, 8, 340, reserved)
        _put(data, 12, 344, _get(data, 12, 344) + self._free_blocks)
        free_inodes = int.from_bytes(data[16:20], "little") + new.inodes - old.inodes
        struct.pack_into("<I", data, 0, new.inodes)
        struct.pack_into("<I", data, 16, free_inodes)
        struct.pack_into("<II", data, 92, new.compatible, new.incompatible)
        struct.pack_into("<H", data, 206, new.reserved_gdt_blocks)
        struct.pack_into("<I", data, 260, new.first_meta_group)
        # The overhead in front of them: zero has the kernel count it.
        struct.pack_into("<III", data, 584, 0, *new.backup_groups)
        self._section.write_at(OFFSET, sealed(data))
        state = int.from_bytes(data[58:60], "little") & ~MOUNTED_CLEANLY
        for group in range(1, new.groups):
            if new.group_has_backup(group):
                struct.pack_into("<H", data, 58, state)
                struct.pack_into("<H", data, 90, group)
                self._section.write_at(new.first_block_of(group) * new.block_size, sealed(data))


def _ones(start: int, stop: int) -> int:
    """A number with the bits from ``start`` up to ``stop`` set."""
    return (1 << stop) - (1 << start)


def _get(data: bytearray, low: int, high: int) -> int:
    return (
        int.from_bytes(data[low : low + 4], "little") | int.from_bytes(data[high : high + 4], "little") << 32
    )


def _put(data: bytearray, low: int, high: int, value: int) -> None:
    """Write a count of blocks; the high half stays zero without the feature 64bit, where no count needs it."""
    struct.pack_into("<I", data, low, value & 0xFFFF_FFFF)
    struct.pack_into("<I", data, high, value >> 32)
