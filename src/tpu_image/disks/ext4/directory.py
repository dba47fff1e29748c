"""Entries of a directory: a list in each block, which is how hashed directories read too."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_ENTRY = struct.Struct("<IHBB")
_REAL_HEADER = 8
_LONGEST_16 = 65536


def entries_of(data: bytes, block_size: int) -> Iterator[tuple[str, int]]:
    """Give name and inode of each entry but ``.`` and ``..``.

    The index blocks of a hashed directory look like one empty entry, and so does a checksum at a block's end.

    Args:
        data: the directory's blocks.
        block_size: bytes of one; the last may be shorter where the directory lies in its inode.

    Raises:
        ValueError: an entry leads out of its block or has a name that no file can have.
    """
    for start in range(0, len(data), block_size):
        position, end = start, min(start + block_size, len(data))
        while position + _REAL_HEADER <= end:
            inode, length, name_length, _ = _ENTRY.unpack_from(data, position)
            if block_size == _LONGEST_16 and length in (0, 65535):
                length = _LONGEST_16
            name = data[position + _REAL_HEADER : position + _REAL_HEADER + name_length]
            if length < _REAL_HEADER or length % 4 or position + length > end:
                raise ValueError("a directory entry leads out of its block")
            position += length
            if not inode or name in (b".", b".."):
                continue
            if _REAL_HEADER + name_length > length or not name or b"/" in name or b"\0" in name:
                raise ValueError("a directory entry has an impossible name")
            yield name.decode("utf-8", "surrogateescape"), inode
