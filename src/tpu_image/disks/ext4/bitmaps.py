"""Which blocks and inodes of an ext4 are in use."""

from __future__ import annotations

from collections.abc import Iterator

from tpu_image.disks.crc32c import crc32c
from tpu_image.disks.errors import UnsupportedError
from tpu_image.disks.ext4.features import READ_ONLY_BIGALLOC
from tpu_image.disks.ext4.filesystem import BLOCK_UNINITIALISED, INODE_UNINITIALISED, Ext4FileSystem

GROUPS_LIMIT = 65536
"""Groups of a file system that is edited: 8 TiB at the usual 128 MiB."""


class Bitmaps:
    """Reads the allocation bitmaps of a file system."""

    def __init__(self, filesystem: Ext4FileSystem) -> None:
        if filesystem.superblock.read_only & READ_ONLY_BIGALLOC:
            raise UnsupportedError(
                "the ext4 feature bigalloc is not supported for writing",
                filesystem.source.name,
                "copy its files to a file system without it",
            )
        self._filesystem = filesystem
        self._superblock = filesystem.superblock
        if self._superblock.groups > GROUPS_LIMIT:
            raise UnsupportedError(
                f"has {self._superblock.groups} block groups, more than {GROUPS_LIMIT}",
                filesystem.source.name,
                "copy its files to a smaller file system",
            )
        if self._superblock.clusters_per_group % 8 or self._superblock.inodes_per_group % 8:
            raise filesystem.damaged("the groups of blocks or inodes do not fill bytes of a bitmap")

    def blocks_of(self, group: int) -> int:
        """How many blocks a group has; the last may have fewer than the others."""
        return self._superblock.blocks_of(group)

    def block_bitmap(self, group: int) -> int:
        """Read a group's block bitmap as one number: bit ``n`` is set where its ``n``-th block is in use."""
        descriptor = self._filesystem.group(group)
        if descriptor.flags & BLOCK_UNINITIALISED:
            return self._initial_bitmap(group)
        size = self._superblock.clusters_per_group // 8
        data = self._filesystem.block(descriptor.block_bitmap)[:size]
        self._verify(group, data, descriptor.block_bitmap_checksum, "block")
        return int.from_bytes(data, "little")

    def inode_bitmap(self, group: int) -> int:
        """Read a group's inode bitmap as one number: bit ``n`` is set where its ``n``-th inode is in use."""
        descriptor = self._filesystem.group(group)
        if descriptor.flags & INODE_UNINITIALISED:
            return 0
        data = self._filesystem.block(descriptor.inode_bitmap)[: self._superblock.inodes_per_group // 8]
        self._verify(group, data, descriptor.inode_bitmap_checksum, "inode")
        return int.from_bytes(data, "little")

    def free_ranges(self) -> Iterator[tuple[int, int]]:
        """Give offset and length, in bytes of the file system, of the areas that nothing is stored in."""
        start = length = 0
        for group in range(self._superblock.groups):
            for first, count in clear_runs(self.block_bitmap(group), self.blocks_of(group)):
                block = self._filesystem.first_block_of(group) + first
                if block != start + length:
                    yield from self._range(start, length)
                    start, length = block, 0
                length += count
        yield from self._range(start, length)

    def _range(self, start: int, length: int) -> Iterator[tuple[int, int]]:
        if length:
            yield start * self._filesystem.block_size, length * self._filesystem.block_size

    def _verify(self, group: int, data: bytes, stored: int, what: str) -> None:
        if not self._superblock.has_checksums:
            return
        value = crc32c(self._superblock.checksum_seed, data)
        mask = 0xFFFF_FFFF if self._superblock.descriptor_size >= 64 else 0xFFFF
        if value & mask != stored & mask:
            raise self._filesystem.damaged(f"the checksum of the {what} bitmap of group {group} is wrong")

    def _initial_bitmap(self, group: int) -> int:
        """Give the bitmap of a group that was never written: its own metadata alone is in use.

        As the kernel does (``ext4_init_block_bitmap``, fs/ext4/balloc.c).
        """
        first, count = self._filesystem.first_block_of(group), self.blocks_of(group)
        bitmap = 0
        for block, length in self.metadata_areas(group):
            if first <= block < first + count:
                bitmap |= ((1 << min(length, count)) - 1) << (block - first)
        return bitmap & ((1 << count) - 1)

    def metadata_areas(self, group: int) -> tuple[tuple[int, int], ...]:
        """First block and length of what describes a group: copies of superblock and descriptors, bitmaps, inodes."""
        descriptor = self._filesystem.group(group)
        return (
            (self._filesystem.first_block_of(group), self._superblock.base_blocks(group)),
            (descriptor.block_bitmap, 1),
            (descriptor.inode_bitmap, 1),
            (descriptor.inode_table, self._superblock.inode_table_blocks),
        )


def clear_runs(bitmap: int, count: int) -> Iterator[tuple[int, int]]:
    """Give first bit and length of each run of clear bits among the first ``count``."""
    bits = format(bitmap & ((1 << count) - 1), f"0{count}b")[::-1]
    start = bits.find("0")
    while start >= 0:
        stop = bits.find("1", start)
        stop = count if stop < 0 else stop
        yield start, stop - start
        start = bits.find("0", stop)
