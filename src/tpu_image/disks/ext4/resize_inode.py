"""The resize inode, which holds the blocks that the table of group descriptors can grow into.

Its doubly indirect block names the kept blocks behind the first copy of the table; each of them names the blocks that
follow it in the other copies (Linux, fs/ext4/resize.c, ``reserve_backup_gdb``; e2fsck checks just that).
"""

from __future__ import annotations

import struct

from tpu_image.disks.edited import EditedSection
from tpu_image.disks.ext4.edit_groups import Group
from tpu_image.disks.ext4.edit_inode import InodeRecord
from tpu_image.disks.ext4.features import COMPATIBLE_RESIZE_INODE
from tpu_image.disks.ext4.filesystem import Ext4FileSystem
from tpu_image.disks.ext4.superblock import Superblock

RESIZE_INODE = 7

DOUBLY_INDIRECT = slice(40 + 4 * 13, 40 + 4 * 14)
"""Where an inode names its doubly indirect block."""


def write_resize_inode(
    section: EditedSection, filesystem: Ext4FileSystem, new: Superblock, descriptors: bytearray
) -> int:
    """Have the resize inode name the blocks that are still kept, or take it away where none can be.

    Args:
        section: the partition.
        filesystem: as it was before.
        new: its superblock after the growth.
        descriptors: of all groups after the growth; the one of a block that is freed is changed.

    Returns:
        Blocks that became free.

    Raises:
        DamagedError: the inode does not lead to a block that can be its own.
    """
    offset = filesystem.inode_offset(RESIZE_INODE)
    record = InodeRecord(new, RESIZE_INODE, section.read_at(offset, new.inode_size))
    block = int.from_bytes(record.data[DOUBLY_INDIRECT], "little")
    filesystem.check_blocks(block, 1)
    if not block:
        raise filesystem.damaged("the resize inode names no block")
    if not new.compatible & COMPATIBLE_RESIZE_INODE:
        section.write_at(offset, bytes(new.inode_size))
        _free(section, new, descriptors, block)
        return 1
    backups = [group for group in range(1, new.groups) if new.group_has_backup(group)]
    count = new.block_size // 4
    kept = [0] * count
    for index in range(new.descriptor_blocks, new.descriptor_blocks + new.reserved_gdt_blocks):
        kept[index % count] = first = new.descriptor_block(0) + index
        pointers = [first + group * new.blocks_per_group for group in backups]
        _write_pointers(section, new, first, pointers)
    _write_pointers(section, new, block, kept)
    record.set_blocks(1 + new.reserved_gdt_blocks * (1 + len(backups)))
    section.write_at(offset, record.sealed())
    return 0


def _write_pointers(section: EditedSection, new: Superblock, block: int, pointers: list[int]) -> None:
    data = struct.pack(f"<{len(pointers)}I", *pointers)
    section.write_at(block * new.block_size, data.ljust(new.block_size, b"\0"))


def _free(section: EditedSection, new: Superblock, descriptors: bytearray, block: int) -> None:
    """Give back the inode's own block."""
    number, bit = divmod(block - new.first_block, new.blocks_per_group)
    place = slice(number * new.descriptor_size, (number + 1) * new.descriptor_size)
    group = Group(number, bytes(descriptors[place]))
    bitmap = bytearray(section.read_at(group.block_bitmap_block * new.block_size, new.block_size))
    bitmap[bit >> 3] &= ~(1 << (bit & 7))
    group.put(12, 44, group.free_blocks + 1)
    group.write_block_bitmap(section, new, bitmap)
    group.seal(new)
    descriptors[place] = group.descriptor
