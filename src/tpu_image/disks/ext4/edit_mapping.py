"""Writing where the blocks of a file are: an extent tree, or the block pointers of ext2 and ext3."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tpu_image.disks.crc32c import crc32c
from tpu_image.disks.ext4.mapping import DIRECT_BLOCKS, EXTENT_MAGIC, Run

ROOT_EXTENTS = 4
"""Extents that fit into the inode's 60 bytes."""

EXTENT_BLOCKS = 32768
"""Blocks that one written extent maps at most (``EXT_INIT_MAX_LEN``)."""

_HEADER = struct.Struct("<HHHHI")
_LEAF = struct.Struct("<IHHI")
_INDEX = struct.Struct("<IIHH")


@dataclass(frozen=True)
class Written:
    """A mapping for the inode, and the index blocks that it needs: block number to content."""

    root: bytes
    index: dict[int, bytes]


TakeBlocks = Callable[[int], list[int]]
"""Takes this many blocks for an index and gives their numbers."""


def extent_tree(runs: Sequence[Run], block_size: int, take: TakeBlocks, checksum_seed: int | None) -> Written:
    """Lay runs out as an extent tree of at most one level below its root.

    Args:
        runs: in logical order, without overlap.
        block_size: bytes.
        take: where index blocks come from.
        checksum_seed: the inode's seed; None for a file system without checksums.

    Raises:
        ValueError: more extents than such a tree holds (over a thousand at 4 KiB).
    """
    leaves = [
        _LEAF.pack(r.logical, r.blocks, r.physical >> 32, r.physical & 0xFFFF_FFFF) for r in _split(runs)
    ]
    if len(leaves) <= ROOT_EXTENTS:
        return Written(_node(leaves, ROOT_EXTENTS, 0), {})
    capacity = (block_size - 12) // 12
    groups = [leaves[i : i + capacity] for i in range(0, len(leaves), capacity)]
    if len(groups) > ROOT_EXTENTS:
        raise ValueError(f"{len(leaves)} extents are more than one level holds")
    index: dict[int, bytes] = {}
    entries = []
    for group, block in zip(groups, take(len(groups)), strict=True):
        logical: int = _LEAF.unpack(group[0])[0]
        entries.append(_INDEX.pack(logical, block & 0xFFFF_FFFF, block >> 32, 0))
        index[block] = _sealed(_node(group, capacity, 0), block_size, capacity, checksum_seed)
    return Written(_node(entries, ROOT_EXTENTS, 1), index)


def _split(runs: Sequence[Run]) -> list[Run]:
    parts = []
    for run in runs:
        for start in range(0, run.blocks, EXTENT_BLOCKS):
            length = min(EXTENT_BLOCKS, run.blocks - start)
            parts.append(Run(run.logical + start, run.physical + start, length))
    return parts


def _node(entries: Sequence[bytes], capacity: int, depth: int) -> bytes:
    return _HEADER.pack(EXTENT_MAGIC, len(entries), capacity, depth, 0) + b"".join(entries)


def _sealed(node: bytes, block_size: int, capacity: int, checksum_seed: int | None) -> bytes:
    """Pad a node to its block, with the checksum that follows the last entry's place (``ext4_extent_tail``)."""
    if checksum_seed is None:
        return node.ljust(block_size, b"\0")
    covered = node.ljust(12 + 12 * capacity, b"\0")
    return (covered + crc32c(checksum_seed, covered).to_bytes(4, "little")).ljust(block_size, b"\0")


def block_pointers(runs: Sequence[Run], block_size: int, take: TakeBlocks) -> Written:
    """Lay runs out as direct and indirect block pointers.

    Raises:
        ValueError: the file is larger than two levels hold (4 GiB at 4 KiB), or a block is beyond 32 bits.
    """
    pointers: list[int] = []
    for run in runs:
        pointers.extend([0] * (run.logical - len(pointers)))
        pointers.extend(range(run.physical, run.physical + run.blocks))
    if pointers and max(pointers) >> 32:
        raise ValueError("a block number does not fit into a block pointer")
    per_block = block_size // 4
    index: dict[int, bytes] = {}

    def table(entries: Sequence[int]) -> int:
        (block,) = take(1)
        index[block] = struct.pack(f"<{len(entries)}I", *entries).ljust(block_size, b"\0")
        return block

    direct, rest = pointers[:DIRECT_BLOCKS], pointers[DIRECT_BLOCKS:]
    tables = [rest[i : i + per_block] for i in range(0, len(rest), per_block)]
    if len(tables) > 1 + per_block:
        raise ValueError("the file is too large for block pointers")
    single = table(tables[0]) if tables else 0
    double = table([table(entries) for entries in tables[1:]]) if len(tables) > 1 else 0
    root = struct.pack("<15I", *direct, *[0] * (DIRECT_BLOCKS - len(direct)), single, double, 0)
    return Written(root, index)
