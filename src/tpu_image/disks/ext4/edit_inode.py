"""An inode's record in the inode table, for changing.

Layout: Linux ``fs/ext4/ext4.h``, ``struct ext4_inode``; Documentation/filesystems/ext4/inodes.rst.
"""

from __future__ import annotations

import struct

from tpu_image.disks.crc32c import crc32c
from tpu_image.disks.ext4.inode import FLAG_EXTENTS, GOOD_OLD_SIZE, Inode, parse_inode
from tpu_image.disks.ext4.superblock import Superblock

EXTRA_SIZE = 32
"""Bytes of fields beyond the first 128 in use, up to and with the project id."""

SECTOR = 512
"""Unit of ``i_blocks``."""

MAPPING = slice(40, 100)
"""Where block pointers, an extent tree's root or a short link's target stand."""

TIMES = (8, 12, 16)
"""Offsets of access, change and modification time, seconds; ``EXTRA_TIMES`` hold their nanoseconds."""
EXTRA_TIMES = (140, 132, 136)
CREATION_TIME, EXTRA_CREATION_TIME = 144, 148


class InodeRecord:
    """The bytes of one inode, with the fields that an edit sets."""

    def __init__(self, superblock: Superblock, number: int, data: bytes) -> None:
        self._superblock = superblock
        self.number = number
        self.data = bytearray(data)

    @property
    def inode(self) -> Inode:
        """The record as reading sees it."""
        return parse_inode(self.number, bytes(self.data), large_directories=True)

    def reset(self, mode: int, uid: int, gid: int, time: int) -> None:
        """Make the record a new inode of this type and mode, with one link and no content."""
        generation = self.data[100:104]
        self.data[:] = bytes(len(self.data))
        self.data[100:104] = generation
        if len(self.data) > GOOD_OLD_SIZE:
            size = min(EXTRA_SIZE, len(self.data) - GOOD_OLD_SIZE)
            struct.pack_into("<H", self.data, GOOD_OLD_SIZE, size)
            self._set_time(CREATION_TIME, EXTRA_CREATION_TIME, time)
        self.set_mode(mode)
        self.set_owner(uid, gid)
        self.set_links(1)
        self.set_times(time)

    def set_mode(self, mode: int) -> None:
        """Set type and permission bits."""
        struct.pack_into("<H", self.data, 0, mode)

    def set_owner(self, uid: int, gid: int) -> None:
        """Set the owner's numbers."""
        struct.pack_into("<H", self.data, 2, uid & 0xFFFF)
        struct.pack_into("<H", self.data, 24, gid & 0xFFFF)
        struct.pack_into("<HH", self.data, 120, uid >> 16, gid >> 16)

    def set_links(self, links: int) -> None:
        """Set how many names lead here."""
        struct.pack_into("<H", self.data, 26, links)

    def set_size(self, size: int) -> None:
        """Set the content's length in bytes."""
        struct.pack_into("<I", self.data, 4, size & 0xFFFF_FFFF)
        struct.pack_into("<I", self.data, 108, size >> 32)

    def set_times(self, time: int) -> None:
        """Set access, change and modification time to whole seconds since 1970."""
        for offset, extra in zip(TIMES, EXTRA_TIMES, strict=True):
            self._set_time(offset, extra, time)

    def _set_time(self, offset: int, extra: int, time: int) -> None:
        """Set one time: 32 bits with a sign, and where the inode has the field, how often they wrapped since 1970."""
        struct.pack_into("<I", self.data, offset, time & 0xFFFF_FFFF)
        if extra + 4 <= self._fields_end:
            struct.pack_into("<I", self.data, extra, (time + (1 << 31) >> 32) & 3)

    @property
    def _fields_end(self) -> int:
        """Where the inode's own fields end and its extended attributes start (``i_extra_isize``)."""
        if len(self.data) == GOOD_OLD_SIZE:
            return GOOD_OLD_SIZE
        return GOOD_OLD_SIZE + int.from_bytes(self.data[128:130], "little")

    def mark_deleted(self, time: int) -> None:
        """Note the time of deletion, by which e2fsck tells a free inode from a lost one.

        A time below the count of inodes would be a link of the list of orphans (e2fsck/pass1.c), and zero an inode
        that nobody deleted.
        """
        self.set_links(0)
        inodes = self._superblock.groups * self._superblock.inodes_per_group
        struct.pack_into("<I", self.data, 20, max(time & 0xFFFF_FFFF, inodes))

    @property
    def sectors(self) -> int:
        """Space taken, in units of 512 bytes."""
        low: int = struct.unpack_from("<I", self.data, 28)[0]
        high: int = struct.unpack_from("<H", self.data, 116)[0]
        return high << 32 | low

    def set_blocks(self, blocks: int) -> None:
        """Set the space taken, in blocks: content, its index, and a block of extended attributes."""
        sectors = blocks * (self._superblock.block_size // SECTOR)
        struct.pack_into("<I", self.data, 28, sectors & 0xFFFF_FFFF)
        struct.pack_into("<H", self.data, 116, sectors >> 32)

    def set_mapping(self, mapping: bytes, *, extents: bool) -> None:
        """Set the 60 bytes that lead to the content, and whether they are an extent tree's root."""
        self.data[MAPPING] = mapping.ljust(60, b"\0")
        flags: int = struct.unpack_from("<I", self.data, 32)[0]
        flags = flags | FLAG_EXTENTS if extents else flags & ~FLAG_EXTENTS
        struct.pack_into("<I", self.data, 32, flags)

    def clear_flag(self, flag: int) -> None:
        """Take one of the ``FLAG_`` bits away."""
        flags: int = struct.unpack_from("<I", self.data, 32)[0]
        struct.pack_into("<I", self.data, 32, flags & ~flag)

    @property
    def checksum_seed(self) -> int:
        """What the checksums of this inode and its directory and extent blocks start from."""
        return crc32c(self._superblock.checksum_seed, self.number.to_bytes(4, "little") + self.data[100:104])

    def sealed(self) -> bytes:
        """The record with its checksum, ready to be written."""
        if not self._superblock.has_checksums:
            return bytes(self.data)
        has_high = len(self.data) > GOOD_OLD_SIZE and int.from_bytes(self.data[128:130], "little") >= 4
        self.data[124:126] = bytes(2)
        if has_high:
            self.data[130:132] = bytes(2)
        value = crc32c(self.checksum_seed, bytes(self.data))
        struct.pack_into("<H", self.data, 124, value & 0xFFFF)
        if has_high:
            struct.pack_into("<H", self.data, 130, value >> 16)
        return bytes(self.data)
