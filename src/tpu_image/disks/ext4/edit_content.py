"""What an inode holds: its blocks taken, written and given back, and the mapping that leads to them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import BinaryIO

from tpu_image.disks.edited import EditedDisk, EditedSection
from tpu_image.disks.errors import UnsupportedError
from tpu_image.disks.ext4.edit_groups import Groups
from tpu_image.disks.ext4.edit_inode import InodeRecord
from tpu_image.disks.ext4.edit_mapping import block_pointers, extent_tree
from tpu_image.disks.ext4.edit_walk import Walk
from tpu_image.disks.ext4.filesystem import Ext4FileSystem
from tpu_image.disks.ext4.mapping import Run
from tpu_image.disks.pages import PAGE

INCOMPATIBLE_EXTENTS = 0x40

PIECE = 1024 * 1024
"""Bytes of a file's content that are in memory at a time; a multiple of every block size."""

LINK_IN_INODE = 60
"""Targets shorter than this stand in the inode itself."""


class ContentEditor:
    """Changes what inodes hold; index blocks and directories are kept until the session is flushed."""

    def __init__(self, disk: EditedDisk | EditedSection, *, time: int) -> None:
        """Open the file system of a partition, as :class:`~tpu_image.disks.ext4.editor.Ext4Editor` does."""
        self._disk = disk
        self._time = time
        self._filesystem = Ext4FileSystem(disk)
        self._superblock = self._filesystem.superblock
        self._refuse_filesystem()
        self._groups = Groups(disk, self._filesystem)
        self._blocks: dict[int, bytes] = {}

    def _refuse_filesystem(self) -> None:
        """Refuse a file system that cannot be kept right, before its groups are looked at."""

    def _group_of(self, record: InodeRecord) -> int:
        return (record.number - 1) // self._superblock.inodes_per_group

    def _set_content(self, record: InodeRecord, content: BinaryIO, length: int) -> None:
        """Write content straight into blocks that were free: nothing leads there before :meth:`flush`."""
        self._free_content(record)
        size = self._superblock.block_size
        runs = self._groups.take_blocks(-(-length // size), self._group_of(record)) if length else []
        left = length
        for run in runs:
            for block in range(run.physical, run.physical + run.blocks):
                self._blocks.pop(block, None)
            for step in range(0, run.blocks, PIECE // size):
                count = min(PIECE // size, run.blocks - step)
                data = _read_whole(content, min(left, count * size))
                left -= len(data)
                self._disk.write_at((run.physical + step) * size, data.ljust(count * size, b"\0"))
        self._map(record, runs)
        record.set_size(length)
        record.set_times(self._time)

    def _set_target(self, record: InodeRecord, target: bytes) -> None:
        if len(target) >= LINK_IN_INODE:
            self._set_content(record, io.BytesIO(target), len(target))
            return
        self._free_content(record)
        record.set_mapping(target, extents=False)
        record.set_blocks(bool(record.inode.attribute_block))
        record.set_size(len(target))
        record.set_times(self._time)

    def _free_content(self, record: InodeRecord) -> None:
        walk = self._walk(record)
        for run in [*walk.runs, *(Run(0, block, 1) for block in walk.index)]:
            self._give_back(run)
        record.set_mapping(b"", extents=False)
        record.set_blocks(bool(record.inode.attribute_block))

    def _give_back(self, run: Run) -> None:
        """Make blocks free, with nothing left to be read where they share a page with others.

        Whole pages of free blocks are left out of what is written; a secret in the others would be carried along.
        """
        self._groups.give_back_blocks(run.physical, run.blocks)
        blocks = range(run.physical, run.physical + run.blocks)
        edge = -(-PAGE // self._superblock.block_size)
        for block in blocks:
            self._blocks.pop(block, None)
        for block in {*blocks[:edge], *blocks[-edge:]}:
            self._blocks[block] = bytes(self._superblock.block_size)

    def _walk(self, record: InodeRecord, *, unwritten: bool = False) -> Walk:
        size, check = self._superblock.block_size, self._groups.check_content
        return Walk(record, size, self._disk.name, check, self._block, unwritten=unwritten)

    def _runs(self, record: InodeRecord) -> list[Run]:
        return self._walk(record).runs

    def _block_numbers(self, record: InodeRecord) -> list[int]:
        return [
            block for run in self._runs(record) for block in range(run.physical, run.physical + run.blocks)
        ]

    def _block(self, block: int) -> bytes:
        if block in self._blocks:
            return self._blocks[block]
        size = self._superblock.block_size
        return self._disk.read_at(block * size, size)

    def _map(self, record: InodeRecord, runs: Sequence[Run], *, unwritten: bool = False) -> None:
        """Make the inode lead to these blocks, with a new index where one is needed."""
        for block in self._walk(record, unwritten=unwritten).index:
            self._groups.give_back_blocks(block, 1)
            self._blocks.pop(block, None)

        def take(count: int) -> list[int]:
            taken = self._groups.take_blocks(count, self._group_of(record))
            return [block for run in taken for block in range(run.physical, run.physical + run.blocks)]

        size = self._superblock.block_size
        extents = bool(self._superblock.incompatible & INCOMPATIBLE_EXTENTS)
        try:
            if extents:
                seed = record.checksum_seed if self._superblock.has_checksums else None
                written = extent_tree(runs, size, take, seed)
            else:
                written = block_pointers(runs, size, take)
        except ValueError as error:
            raise UnsupportedError(str(error), self._disk.name, "make room in the base first") from None
        self._blocks.update(written.index)
        record.set_mapping(written.root, extents=extents)
        attributes = bool(record.inode.attribute_block)
        record.set_blocks(sum(run.blocks for run in runs) + len(written.index) + attributes)


def _read_whole(content: BinaryIO, length: int) -> bytes:
    data = content.read(length)
    while len(data) < length:
        more = content.read(length - len(data))
        if not more:
            raise EOFError
        data += more
    return data
