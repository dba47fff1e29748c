"""Extended attributes, inside an inode or in a block of their own."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

MAGIC = b"\x00\x00\x02\xea"
PREFIXES = {
    0: "",
    1: "user.",
    2: "system.posix_acl_access",
    3: "system.posix_acl_default",
    4: "trusted.",
    6: "security.",
    7: "system.",
    8: "system.richacl",
}
INLINE_DATA = "system.data"
"""Attribute that continues the content of a file kept in its inode."""

_BLOCK_HEADER = 32
_ENTRY = struct.Struct("<BBHIIxxxx")


class Attribute(NamedTuple):
    """One attribute: its value, or the inode that holds the value (0: none does) and its length in bytes."""

    name: str
    value: bytes
    inode: int
    size: int


def attributes_in_inode(data: bytes) -> Iterator[Attribute]:
    """Read what follows the fields of an inode; ValueError where it is damaged."""
    if data[:4] == MAGIC:
        yield from _attributes(data[4:], 0)


def attributes_in_block(data: bytes) -> Iterator[Attribute]:
    """Read an attribute block; ValueError where it is damaged."""
    if data[:4] != MAGIC:
        raise ValueError("the attribute block is damaged")
    yield from _attributes(data, _BLOCK_HEADER)


def _attributes(data: bytes, position: int) -> Iterator[Attribute]:
    """Read entries from ``position`` on; values are counted from the start of ``data``."""
    while data[position : position + 4] not in (bytes(4), b""):
        if position + _ENTRY.size > len(data):
            raise ValueError("an extended attribute is cut short")
        length, prefix, offset, inode, size = _ENTRY.unpack_from(data, position)
        name = data[position + _ENTRY.size : position + _ENTRY.size + length]
        if len(name) < length or (not inode and offset + size > len(data)):
            raise ValueError("an extended attribute is out of range")
        value = b"" if inode else data[offset : offset + size]
        yield Attribute(
            PREFIXES.get(prefix, f"{prefix}.") + name.decode("utf-8", "surrogateescape"), value, inode, size
        )
        position += (_ENTRY.size + length + 3) & ~3
