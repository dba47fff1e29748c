"""Directory blocks, for changing: entries put in, taken out and turned to another inode.

A directory is a row of blocks, each a row of entries that fills it (Documentation/filesystems/ext4/directory.rst).
A hash tree lies over that form so that it can be ignored: :func:`flattened` takes it away, since reading a few
blocks in a row costs nothing and keeping the hash right would.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from tpu_image.disks.crc32c import crc32c

_ENTRY = struct.Struct("<IHBB")
TAIL = struct.pack("<IHBB", 0, 12, 0, 0xDE)
"""What a checksum looks like to a reader that knows none: an entry of no inode (``ext4_dir_entry_tail``)."""
TAIL_SIZE = 12

INDEX_INFO_SIZE = 8
"""``info_length`` of an index, which stands behind four zero bytes and the hash's kind (``struct dx_root_info``)."""


@dataclass(frozen=True)
class DirectoryEntry:
    """An entry at ``offset`` of its block; ``inode`` 0 means unused space."""

    offset: int
    inode: int
    length: int
    name: bytes

    @property
    def used(self) -> int:
        """Bytes that the entry itself needs."""
        return space_for(self.name) if self.inode else 0


class DirectoryError(Exception):
    """A directory block is damaged; the message says how."""


def space_for(name: bytes) -> int:
    """Bytes that an entry of this name takes."""
    return (8 + len(name) + 3) & ~3


def _length(raw: int, block_size: int) -> int:
    """Decode a record length; 64 KiB blocks need the two values that 16 bits cannot hold."""
    return block_size if block_size >= 65536 and raw in (0, 65535) else raw


class DirectoryBlock:
    """One block of a directory; ``changed`` once an entry was put in or taken out."""

    def __init__(self, data: bytes, *, checksums: bool) -> None:
        self.data = bytearray(data)
        self.changed = False
        self._no_room_for = len(data) + 1
        self._checksums = checksums
        self._end = len(data) - (TAIL_SIZE if checksums else 0)

    @classmethod
    def empty(cls, block_size: int, *, checksums: bool) -> DirectoryBlock:
        """A block with room and no entry."""
        block = cls(bytes(block_size), checksums=checksums)
        _ENTRY.pack_into(block.data, 0, 0, block._end & 0xFFFF, 0, 0)
        if checksums:
            block.data[block._end : block._end + 8] = TAIL
        return block

    def entries(self) -> Iterator[DirectoryEntry]:
        """Every entry, unused ones too.

        Raises:
            DirectoryError: the row of entries does not fill the block.
        """
        offset = 0
        while offset < self._end:
            if offset + 8 > self._end:
                raise DirectoryError(f"entry at byte {offset} is cut short")
            inode, raw, name_length, _ = _ENTRY.unpack_from(self.data, offset)
            length = _length(raw, len(self.data))
            if length < 8 or length % 4 or offset + length > self._end or 8 + name_length > length:
                raise DirectoryError(f"entry at byte {offset} has length {length}")
            name = bytes(self.data[offset + 8 : offset + 8 + name_length])
            yield DirectoryEntry(offset, inode, length, name)
            offset += length

    def find(self, name: bytes) -> DirectoryEntry | None:
        """The entry of a name; None where the block has none."""
        if name not in self.data:
            return None
        return next((entry for entry in self.entries() if entry.inode and entry.name == name), None)

    def add(self, name: bytes, inode: int, file_type: int) -> bool:
        """Put an entry in; False where the block has no room for it."""
        needed = space_for(name)
        if needed >= self._no_room_for:
            return False
        for entry in self.entries():
            room = entry.length - entry.used
            if room < needed:
                continue
            offset = entry.offset + entry.used
            if entry.used:
                self._set_length(entry.offset, entry.used)
            _ENTRY.pack_into(self.data, offset, inode, room & 0xFFFF, len(name), file_type)
            self.data[offset + 8 : offset + 8 + len(name)] = name
            self.changed = True
            return True
        self._no_room_for = needed
        return False

    def remove(self, name: bytes) -> bool:
        """Take an entry out, its space going to the one before; False where there is none."""
        before: DirectoryEntry | None = None
        self._no_room_for = len(self.data) + 1
        for entry in self.entries():
            if entry.inode and entry.name == name:
                if before is not None:
                    self._set_length(before.offset, before.length + entry.length)
                else:
                    _ENTRY.pack_into(self.data, entry.offset, 0, entry.length & 0xFFFF, 0, 0)
                self.changed = True
                return True
            before = entry
        return False

    def _set_length(self, offset: int, length: int) -> None:
        struct.pack_into("<H", self.data, offset + 4, length & 0xFFFF)

    def sealed(self, checksum_seed: int) -> bytes:
        """The block with its checksum, ready to be written."""
        if not self._checksums:
            return bytes(self.data)
        value = crc32c(checksum_seed, bytes(self.data[: self._end]))
        return bytes(self.data[: self._end]) + TAIL + value.to_bytes(4, "little")


def flattened(blocks: list[bytes], *, checksums: bool) -> list[DirectoryBlock]:
    """Give the blocks of an indexed directory without their index.

    The index stands in the first block behind ``.`` and ``..`` and in blocks whose one entry of no inode covers
    them whole; with checksums both end in a tail of their own, which gives way to that of ordinary blocks.

    Raises:
        DirectoryError: the first block does not start with an index.
    """
    if not blocks or blocks[0][24:28] != bytes(4) or blocks[0][29] != INDEX_INFO_SIZE:
        raise DirectoryError("its index is damaged")
    result = []
    for position, data in enumerate(blocks):
        block = bytearray(data)
        size = len(block)
        end = size - (TAIL_SIZE if checksums else 0)
        inode, raw, _, _ = _ENTRY.unpack_from(block, 0)
        if position == 0:
            struct.pack_into("<H", block, 16, (end - 12) & 0xFFFF)
            block[24:] = bytes(size - 24)
        elif inode == 0 and _length(raw, size) == size:
            block[:] = bytes(size)
            _ENTRY.pack_into(block, 0, 0, end & 0xFFFF, 0, 0)
        if checksums:
            block[end : end + 8] = TAIL
        result.append(DirectoryBlock(bytes(block), checksums=checksums))
    return result
