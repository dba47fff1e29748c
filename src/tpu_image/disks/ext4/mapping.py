"""Where the blocks of a file are: extent trees, and the block pointers of ext2 and ext3."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tpu_image.disks.ext4.inode import FLAG_EXTENTS, Inode

EXTENT_MAGIC = 0xF30A
DEPTH_LIMIT = 5
"""Levels of an extent tree below its root (``EXT4_MAX_EXTENT_DEPTH``)."""

UNWRITTEN = 32768
"""Extent lengths above it mean blocks that are allocated and read as zero."""

DIRECT_BLOCKS = 12

_HEADER = struct.Struct("<HHHH4x")
_LEAF = struct.Struct("<IHHI")
_INDEX = struct.Struct("<IIHxx")


class Run(NamedTuple):
    """Blocks that follow one another: the first in the file, the first on the disk, how many."""

    logical: int
    physical: int
    blocks: int


class MappingError(Exception):
    """The blocks of a file cannot be found; the message says why."""


BlockReader = Callable[[int], bytes]
"""Reads one block of the file system by number, having judged the number."""


def runs_of(
    inode: Inode,
    first: int,
    count: int,
    block_size: int,
    read_block: BlockReader,
    *,
    unwritten: bool = False,
) -> Iterator[Run]:
    """Find the stored blocks among the file's ``count`` blocks from ``first``; holes are left out.

    So are blocks that are allocated and were never written, unless ``unwritten`` asks for them.

    Yields:
        Runs in order; neighbours on the disk may come as two.

    Raises:
        MappingError: the tree of blocks is damaged.
    """
    if inode.flags & FLAG_EXTENTS:
        return _ExtentTree(first, first + count, read_block, unwritten).runs(inode.mapping)
    return _joined(_Pointers(first, first + count, block_size, read_block).runs(inode.mapping))


class _ExtentTree:
    """A walk over the part of an extent tree that maps some of a file's blocks.

    Entries must come in order over the whole walk and each level be one lower, so that no block is read
    twice and loops end; blocks without entries would escape that and are refused.
    """

    def __init__(self, first: int, end: int, read_block: BlockReader, unwritten: bool) -> None:
        self._first = first
        self._end = end
        self._read_block = read_block
        self._unwritten = unwritten
        self._done = 0

    def runs(self, root: bytes) -> Iterator[Run]:
        return self._node(root, None)

    def _node(self, data: bytes, depth: int | None) -> Iterator[Run]:
        magic, entries, capacity, level = _HEADER.unpack_from(data)
        if magic != EXTENT_MAGIC or entries > capacity or 12 * (entries + 1) > len(data):
            raise MappingError("an extent block is damaged")
        if level > DEPTH_LIMIT or (depth is not None and (level != depth or not entries)):
            raise MappingError("the extent tree is damaged")
        return self._leaf(data, entries) if level == 0 else self._index(data, entries, level)

    def _leaf(self, data: bytes, entries: int) -> Iterator[Run]:
        for logical, length, high, low in _LEAF.iter_unpack(data[12 : 12 * (entries + 1)]):
            written = length <= UNWRITTEN
            length = length if written else length - UNWRITTEN
            if logical < self._done or not length:
                raise MappingError("the extents of a file overlap or are out of order")
            self._done = logical + length
            start, end = max(logical, self._first), min(self._done, self._end)
            if (written or self._unwritten) and start < end:
                yield Run(start, (high << 32 | low) + start - logical, end - start)

    def _index(self, data: bytes, entries: int, level: int) -> Iterator[Run]:
        children = list(_INDEX.iter_unpack(data[12 : 12 * (entries + 1)]))
        for index, (logical, low, high) in enumerate(children):
            following = children[index + 1][0] if index + 1 < entries else None
            if logical < self._done or (following is not None and following <= logical):
                raise MappingError("the index of an extent tree is out of order")
            if logical >= self._end:
                return
            if following is None or following > self._first:
                self._done = logical
                yield from self._node(self._read_block(high << 32 | low), level - 1)


class _Pointers:
    """A walk over the block pointers that map some of a file's blocks, up to three levels deep."""

    def __init__(self, first: int, end: int, block_size: int, read_block: BlockReader) -> None:
        self._first = first
        self._end = end
        self._per_block = block_size // 4
        self._read_block = read_block

    def runs(self, mapping: bytes) -> Iterator[Run]:
        pointers = struct.unpack("<15I", mapping)
        for logical in range(self._first, min(self._end, DIRECT_BLOCKS)):
            if pointers[logical]:
                yield Run(logical, pointers[logical], 1)
        base = DIRECT_BLOCKS
        for level, pointer in enumerate(pointers[DIRECT_BLOCKS:], 1):
            span = self._per_block**level
            if pointer and base < self._end and base + span > self._first:
                yield from self._level(pointer, level, base)
            base += span

    def _level(self, block: int, level: int, base: int) -> Iterator[Run]:
        per_block = self._per_block
        span = per_block ** (level - 1)
        start = max(0, (self._first - base) // span)
        stop = min(per_block, -(-(self._end - base) // span))
        pointers = struct.unpack(f"<{per_block}I", self._read_block(block))
        for index in range(start, stop):
            if not pointers[index]:
                continue
            if level == 1:
                yield Run(base + index, pointers[index], 1)
            else:
                yield from self._level(pointers[index], level - 1, base + index * span)


def _joined(runs: Iterator[Run]) -> Iterator[Run]:
    last: Run | None = None
    for run in runs:
        if (
            last is not None
            and run.logical == last.logical + last.blocks
            and run.physical == last.physical + last.blocks
        ):
            last = Run(last.logical, last.physical, last.blocks + run.blocks)
            continue
        if last is not None:
            yield last
        last = run
    if last is not None:
        yield last
