"""An inode as it lies in the inode table."""

from __future__ import annotations

import struct
from typing import NamedTuple

from tpu_image.disks.crc32c import crc32c
from tpu_image.trees.base import Kind

ROOT_INODE = 2

FLAG_ENCRYPT = 0x800
FLAG_EXTENTS = 0x8_0000
FLAG_VERITY = 0x10_0000
FLAG_EA_INODE = 0x20_0000
FLAG_INLINE_DATA = 0x1000_0000
FLAG_CASEFOLD = 0x4000_0000

GOOD_OLD_SIZE = 128
"""Bytes of an inode without the fields that ext4 added behind it."""

_KINDS = {
    0x1: Kind.FIFO,
    0x2: Kind.CHARACTER_DEVICE,
    0x4: Kind.DIRECTORY,
    0x6: Kind.BLOCK_DEVICE,
    0x8: Kind.FILE,
    0xA: Kind.SYMLINK,
    0xC: Kind.SOCKET,
}

_INODE = struct.Struct("<HHIIIIIHHIII60sIIIIHHHHH2x")


class Inode(NamedTuple):
    """What an inode says.

    Attributes:
        number: from 1.
        mode: file type and permission bits (``st_mode``).
        size: bytes of the content.
        links: names that lead to it; 0 for an inode that is not in use.
        flags: the ``FLAG_`` bits.
        mtime: seconds since the epoch of the last change of the content.
        mapping: 60 bytes that hold block pointers, an extent tree's root, or content itself.
        attribute_block: block of extended attributes; 0 for none.
        attributes: the bytes behind the inode's fields, where extended attributes are.
    """

    number: int
    mode: int
    uid: int
    gid: int
    size: int
    links: int
    flags: int
    generation: int
    mtime: int
    mapping: bytes
    attribute_block: int
    attributes: bytes

    @property
    def kind(self) -> Kind | None:
        """What it is; None for a type that does not exist."""
        return _KINDS.get(self.mode >> 12)

    @property
    def permissions(self) -> int:
        """Permission bits alone."""
        return self.mode & 0o7777


def parse_inode(number: int, data: bytes, *, large_directories: bool) -> Inode:
    """Take an inode's bytes apart."""
    (
        mode, uid, size, _, _, mtime, _, gid, links, _, flags, _, mapping,
        generation, acl, size_high, _, _, acl_high, uid_high, gid_high, _,
    ) = _INODE.unpack_from(data)  # fmt: skip
    if mode >> 12 == 0x8 or large_directories:
        size |= size_high << 32
    attributes = b""
    if len(data) > GOOD_OLD_SIZE:
        extra_size = int.from_bytes(data[128:130], "little")
        if extra_size >= 12:
            # Two low bits of the nanoseconds carry the time beyond 2038 (Documentation, "Inode Timestamps").
            mtime += (data[136] & 3) << 32
        attributes = data[GOOD_OLD_SIZE + extra_size :]
    if mtime & 0x8000_0000:
        mtime -= 1 << 32
    return Inode(
        number, mode, uid | uid_high << 16, gid | gid_high << 16, size, links, flags, generation, mtime,
        mapping, acl | acl_high << 32, attributes,
    )  # fmt: skip


def checksum_is_right(number: int, data: bytes, seed: int) -> bool:
    """Whether an inode's own checksum (metadata_csum) agrees with its bytes."""
    low = int.from_bytes(data[124:126], "little")
    value = crc32c(seed, number.to_bytes(4, "little") + data[100:104])
    value = crc32c(value, data[:124] + bytes(2) + data[126:128])
    if len(data) == GOOD_OLD_SIZE:
        return value & 0xFFFF == low
    if int.from_bytes(data[128:130], "little") < 4:
        return crc32c(value, data[128:]) & 0xFFFF == low
    value = crc32c(value, data[128:130] + bytes(2) + data[132:])
    return value == low | int.from_bytes(data[130:132], "little") << 16
