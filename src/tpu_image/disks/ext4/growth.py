"""What an ext4 becomes when it grows: as many groups as fit, their descriptors where the format has room for them.

As resize2fs(8) and the kernel do (fs/ext4/resize.c): the descriptor table grows into the blocks that the resize inode
keeps for it; where there are too few, what comes behind is described by meta groups.
"""

from __future__ import annotations

from tpu_image.disks.errors import UnsupportedError
from tpu_image.disks.ext4.bitmaps import GROUPS_LIMIT
from tpu_image.disks.ext4.features import (
    COMPATIBLE_RESIZE_INODE,
    COMPATIBLE_SPARSE_SUPER2,
    INCOMPATIBLE_64BIT,
    INCOMPATIBLE_META_BG,
    READ_ONLY_BIGALLOC,
    READ_ONLY_SPARSE_SUPER,
)
from tpu_image.disks.ext4.superblock import UNCLEAN_REMEDY, Superblock

LAST_GROUP_ROOM = 50
"""Blocks that the last group must have beside its metadata, or it is left out (``ext2fs_initialize``, resize2fs)."""

NUMBERS = 1 << 32
"""Inodes, and blocks without the feature 64bit, are counted below this."""

LEAVE = "leave --size out"


def refuse(superblock: Superblock, name: str) -> None:
    """Refuse a file system that growing would not keep right.

    Raises:
        UnsupportedError: it was not unmounted, or has a feature that is not handled; named.
    """
    if superblock.needs_recovery or not superblock.is_clean:
        raise UnsupportedError("the file system was not unmounted cleanly", name, UNCLEAN_REMEDY)
    names = [feature for feature in superblock.features if feature.startswith("unknown")]
    if superblock.read_only & READ_ONLY_BIGALLOC:
        names.append("bigalloc")
    if superblock.compatible & COMPATIBLE_RESIZE_INODE and not superblock.read_only & READ_ONLY_SPARSE_SUPER:
        names.append("resize_inode without sparse_super")
    if names:
        raise UnsupportedError(
            f"growing an ext4 with the feature {', '.join(names)} is not supported", name, LEAVE
        )


def grown(superblock: Superblock, blocks: int, name: str) -> Superblock:
    """Say what the superblock becomes with up to ``blocks`` blocks; the same where nothing can be added.

    Raises:
        UnsupportedError: it has more groups, blocks or inodes than are handled.
    """
    while blocks > superblock.blocks:
        larger = _with_blocks(superblock, blocks)
        if larger.groups > GROUPS_LIMIT:
            raise UnsupportedError(f"would have more than {GROUPS_LIMIT} block groups", name, LEAVE)
        if larger.inodes >= NUMBERS or (
            blocks >= NUMBERS and not superblock.incompatible & INCOMPATIBLE_64BIT
        ):
            raise UnsupportedError("would have more blocks or inodes than it can count", name, LEAVE)
        last = larger.groups - 1
        needed = larger.base_blocks(last) + 2 + larger.inode_table_blocks + LAST_GROUP_ROOM
        if last < superblock.groups or larger.blocks_of(last) >= min(needed, larger.blocks_per_group):
            return larger
        blocks = larger.first_block_of(last)
    return superblock


def _with_blocks(superblock: Superblock, blocks: int) -> Superblock:
    larger = superblock._replace(blocks=blocks)
    groups = larger.groups
    larger = larger._replace(inodes=groups * superblock.inodes_per_group)
    if superblock.compatible & COMPATIBLE_SPARSE_SUPER2 and superblock.groups == 1 < groups:
        larger = larger._replace(backup_groups=(1, groups - 1 if groups > 2 else 0))
    if superblock.incompatible & INCOMPATIBLE_META_BG:
        return larger
    more = larger.descriptor_blocks - superblock.descriptor_blocks
    if more <= superblock.reserved_gdt_blocks:
        return larger._replace(reserved_gdt_blocks=superblock.reserved_gdt_blocks - more)
    return larger._replace(
        incompatible=superblock.incompatible | INCOMPATIBLE_META_BG,
        compatible=superblock.compatible & ~COMPATIBLE_RESIZE_INODE,
        first_meta_group=superblock.descriptor_blocks + superblock.reserved_gdt_blocks,
        reserved_gdt_blocks=0,
    )
