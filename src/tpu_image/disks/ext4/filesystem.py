"""An ext4 as a file system: inodes, contents, directories, attributes, and which blocks are free."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

from tpu_image.disks.cache import BoundedCache
from tpu_image.disks.crc32c import crc32c
from tpu_image.disks.errors import DamagedError, UnsupportedError
from tpu_image.disks.ext4.attributes import INLINE_DATA, Attribute, attributes_in_block, attributes_in_inode
from tpu_image.disks.ext4.directory import entries_of
from tpu_image.disks.ext4.features import INCOMPATIBLE_LARGE_DIRECTORY
from tpu_image.disks.ext4.inode import (
    FLAG_CASEFOLD,
    FLAG_EA_INODE,
    FLAG_ENCRYPT,
    FLAG_EXTENTS,
    FLAG_INLINE_DATA,
    Inode,
    checksum_is_right,
    parse_inode,
)
from tpu_image.disks.ext4.mapping import MappingError, Run, runs_of
from tpu_image.disks.ext4.superblock import REPAIR, Superblock, read_superblock
from tpu_image.disks.source import BlockSource

BLOCK_CACHE = 8 * 1024 * 1024
"""Bytes of metadata blocks that are kept."""

INODE_CACHE = 4 * 1024 * 1024
"""Bytes of inodes that are kept, each counted as 256 and its attributes."""

GROUPS_KEPT = 8192

DIRECTORY_LIMIT = 8 * 1024 * 1024
"""Bytes of a directory: some 200,000 names."""

ATTRIBUTE_LIMIT = 65536
"""Bytes of an attribute's value (``XATTR_SIZE_MAX``, include/uapi/linux/limits.h)."""

INODE_UNINITIALISED, BLOCK_UNINITIALISED = 0x1, 0x2

_DESCRIPTOR = struct.Struct("<IIIHHHH4xHH4x")


class Group(NamedTuple):
    """A group's descriptor: where its bitmaps and inode table are; ``flags`` has ``_UNINITIALISED`` bits."""

    block_bitmap: int
    inode_bitmap: int
    inode_table: int
    flags: int
    block_bitmap_checksum: int
    inode_bitmap_checksum: int


class Ext4FileSystem:
    """Reads an ext4 at random, verifying the checksums of superblock, groups, inodes and bitmaps.

    Those of directory and extent blocks are not: one costs 0.3 ms in plain Python, more than all else.
    What cannot be read becomes a DamagedError, or an UnsupportedError that names the feature.
    """

    def __init__(self, source: BlockSource, *, allow_unclean: bool = False) -> None:
        self.source = source
        self.superblock: Superblock = read_superblock(source, allow_unclean=allow_unclean)
        self.block_size = self.superblock.block_size
        self._blocks: BoundedCache[int, bytes] = BoundedCache(BLOCK_CACHE, len)
        self._inodes: BoundedCache[int, Inode] = BoundedCache(
            INODE_CACHE, lambda inode: 256 + len(inode.attributes)
        )
        self._groups: BoundedCache[int, Group] = BoundedCache(GROUPS_KEPT, lambda _: 1)

    def damaged(self, what: str) -> DamagedError:
        """Make the error that says what is damaged in this file system."""
        return DamagedError(what, self.source.name, REPAIR)

    def block(self, number: int) -> bytes:
        """Read a block of metadata."""
        data = self._blocks.get(number)
        if data is None:
            self.check_blocks(number, 1)
            data = self.source.read_at(number * self.block_size, self.block_size)
            self._blocks.put(number, data)
        return data

    def check_blocks(self, number: int, count: int) -> None:
        """Refuse blocks that are not all on the file system."""
        if number < self.superblock.first_block or number + count > self.superblock.blocks:
            raise self.damaged(f"block {number} is out of range")

    def group(self, index: int) -> Group:
        """Read a group's descriptor."""
        group = self._groups.get(index)
        if group is None:
            group = self._read_group(index)
            self._groups.put(index, group)
        return group

    def _read_group(self, index: int) -> Group:
        size = self.superblock.descriptor_size
        block, position = divmod(index, self.block_size // size)
        data = self.block(self.superblock.descriptor_block(block))[position * size : (position + 1) * size]
        stored = int.from_bytes(data[30:32], "little")
        if self.superblock.has_checksums:
            value = crc32c(self.superblock.checksum_seed, index.to_bytes(4, "little"))
            if crc32c(value, data[:30] + bytes(2) + data[32:]) & 0xFFFF != stored:
                raise self.damaged(f"the checksum of block group {index} is wrong")
        low = _DESCRIPTOR.unpack_from(data)
        high = struct.unpack_from("<III", data, 32) if size >= 64 else (0, 0, 0)
        checksums = struct.unpack_from("<HH", data, 56) if size >= 64 else (0, 0)
        return Group(
            low[0] | high[0] << 32,
            low[1] | high[1] << 32,
            low[2] | high[2] << 32,
            low[6],
            low[7] | checksums[0] << 16,
            low[8] | checksums[1] << 16,
        )

    def descriptor_offset(self, group: int) -> int:
        """Byte offset of a group's descriptor."""
        size = self.superblock.descriptor_size
        block, position = divmod(group, self.block_size // size)
        return self.superblock.descriptor_block(block) * self.block_size + position * size

    def inode_offset(self, number: int) -> int:
        """Byte offset of an inode's record.

        Raises:
            DamagedError: the file system has no such inode.
        """
        if not 1 <= number <= self.superblock.inodes:
            raise self.damaged(f"inode {number} is out of range")
        group, index = divmod(number - 1, self.superblock.inodes_per_group)
        return self.group(group).inode_table * self.block_size + index * self.superblock.inode_size

    def first_block_of(self, group: int) -> int:
        """Number of a group's first block."""
        return self.superblock.first_block_of(group)

    def inode(self, number: int) -> Inode:
        """Read an inode."""
        inode = self._inodes.get(number)
        if inode is None:
            inode = self._read_inode(number)
            self._inodes.put(number, inode)
        return inode

    def _read_inode(self, number: int) -> Inode:
        superblock = self.superblock
        if not 1 <= number <= superblock.inodes:
            raise self.damaged(f"inode {number} is out of range")
        group, index = divmod(number - 1, superblock.inodes_per_group)
        offset = index * superblock.inode_size
        block, inside = divmod(offset, self.block_size)
        data = self.block(self.group(group).inode_table + block)[inside : inside + superblock.inode_size]
        if superblock.has_checksums and not checksum_is_right(number, data, superblock.checksum_seed):
            raise self.damaged(f"the checksum of inode {number} is wrong")
        return parse_inode(
            number, data, large_directories=bool(superblock.incompatible & INCOMPATIBLE_LARGE_DIRECTORY)
        )

    def content(self, inode: Inode, limit: int) -> bytes:
        """Read the content of a file, link or directory; more than ``limit`` bytes count as damage."""
        if inode.size > limit:
            raise self.damaged(f"inode {inode.number} has {inode.size} bytes, more than {limit}")
        if inode.flags & FLAG_ENCRYPT:
            raise UnsupportedError(
                "the ext4 feature encrypt is used", self.source.name, "decrypt the files first"
            )
        if inode.flags & FLAG_INLINE_DATA:
            return self._inline_content(inode)
        parts = []
        done = 0
        for run in self.runs(inode):
            start = run.logical * self.block_size
            parts.append(bytes(start - done))
            done = min(start + run.blocks * self.block_size, inode.size)
            parts.append(self.source.read_at(run.physical * self.block_size, done - start))
        parts.append(bytes(inode.size - done))
        return b"".join(parts)

    def runs(self, inode: Inode) -> Iterator[Run]:
        """Find the blocks that a file's content is stored in; holes are left out."""
        count = -(-inode.size // self.block_size)
        try:
            for run in runs_of(inode, 0, count, self.block_size, self.block):
                self.check_blocks(run.physical, run.blocks)
                yield run
        except MappingError as error:
            raise self.damaged(f"inode {inode.number}: {error}") from None

    def _inline_content(self, inode: Inode) -> bytes:
        """Join what lies in the inode's mapping with the attribute that continues it."""
        content = inode.mapping
        for attribute in self._attributes(inode, attributes_in_inode(inode.attributes)):
            if attribute.name == INLINE_DATA:
                content += attribute.value
        return content[: inode.size].ljust(inode.size, b"\0")  # the kernel reads the rest as a hole

    def link_target(self, inode: Inode) -> bytes:
        """Read where a symbolic link points; short ones lie in the inode itself."""
        if inode.size < 60 and not inode.flags & (FLAG_EXTENTS | FLAG_INLINE_DATA | FLAG_ENCRYPT):
            return inode.mapping[: inode.size]
        return self.content(inode, self.block_size)

    def directory(self, inode: Inode) -> dict[str, int]:
        """Read a directory: inode numbers by name, in order, without ``.`` and ``..``."""
        if inode.flags & FLAG_CASEFOLD:
            raise UnsupportedError(
                "the ext4 feature casefold is used", self.source.name, "copy the files elsewhere"
            )
        data = self.content(inode, DIRECTORY_LIMIT)
        try:
            if not inode.flags & FLAG_INLINE_DATA:
                return dict(entries_of(data, self.block_size))
            # In an inode: four bytes for the parent, then two lists, in the mapping and in the attribute.
            return dict([*entries_of(data[4:60], 56), *entries_of(data[60:], self.block_size)])
        except ValueError as error:
            raise self.damaged(f"directory inode {inode.number}: {error}") from None

    def extended_attributes(self, inode: Inode) -> dict[str, bytes]:
        """Read the extended attributes; access control lists come in ext4's own form (version 1)."""
        found = list(self._attributes(inode, attributes_in_inode(inode.attributes)))
        if inode.attribute_block:
            found += self._attributes(inode, attributes_in_block(self.block(inode.attribute_block)))
        return {item.name: self._attribute_value(item) for item in found if item.name != INLINE_DATA}

    def _attributes(self, inode: Inode, attributes: Iterator[Attribute]) -> Iterator[Attribute]:
        try:
            yield from attributes
        except ValueError as error:
            raise self.damaged(f"inode {inode.number}: {error}") from None

    def _attribute_value(self, attribute: Attribute) -> bytes:
        if not attribute.inode:
            return attribute.value
        inode = self.inode(attribute.inode)
        if not inode.flags & FLAG_EA_INODE or inode.size != attribute.size:
            raise self.damaged(f"inode {inode.number} does not hold the attribute {attribute.name}")
        return self.content(inode, ATTRIBUTE_LIMIT)
