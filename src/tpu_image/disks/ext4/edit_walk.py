"""Finding every block that a file holds, before it is changed or given back."""

from __future__ import annotations

from collections.abc import Callable

from tpu_image.disks.errors import DamagedError, UnsupportedError
from tpu_image.disks.ext4.edit_inode import SECTOR, InodeRecord
from tpu_image.disks.ext4.inode import FLAG_EXTENTS
from tpu_image.disks.ext4.mapping import BlockReader, MappingError, Run, runs_of
from tpu_image.disks.ext4.superblock import REPAIR

FILE_BLOCKS = 1 << 32
"""More blocks than any file has."""

CONTENT_LIMIT = 1 << 20
"""Blocks of a file that is changed or removed: 4 GiB at the usual block size."""


class Walk:
    """The blocks of an inode's content: ``runs``, and the blocks that ``index`` them."""

    def __init__(
        self,
        record: InodeRecord,
        block_size: int,
        where: str,
        check: Callable[[int, int], None],
        read_block: BlockReader,
        *,
        unwritten: bool = False,
    ) -> None:
        """Walk over all of it.

        Args:
            record: the inode.
            block_size: bytes.
            where: what messages call the file system.
            check: refuses blocks, first and how many, that no file can hold.
            read_block: reads one block.
            unwritten: also take preallocated blocks for content.

        Raises:
            DamagedError: the mapping contradicts itself, or leads to blocks that ``check`` refuses.
            UnsupportedError: there are very many blocks, or others than the inode counts, as where some are
                preallocated, which reading does not show.
        """
        self.runs: list[Run] = []
        self.index: list[int] = []
        self._check = check
        self._read_block = read_block
        attributes = bool(record.inode.attribute_block)
        counted, rest = divmod(record.sectors, block_size // SECTOR)
        self._left = min(counted, CONTENT_LIMIT) - attributes
        if not self._left and not rest and not record.inode.flags & FLAG_EXTENTS:
            return  # nothing but a short link's target, or nothing at all
        try:
            runs = runs_of(record.inode, 0, FILE_BLOCKS, block_size, self._read, unwritten=unwritten)
            for run in runs:
                self._count(run.physical, run.blocks)
                self.runs.append(run)
        except MappingError as error:
            raise DamagedError(f"inode {record.number}: {error}", where, REPAIR) from None
        except _TooManyError:
            self._left = -1
        if self._left or rest or counted > CONTENT_LIMIT:
            raise UnsupportedError(
                f"inode {record.number} holds very many blocks, or others than it counts (preallocated ones?)",
                where,
                "write the file anew in the base",
            )

    def _count(self, first: int, blocks: int) -> None:
        self._left -= blocks
        if self._left < 0:
            raise _TooManyError
        self._check(first, blocks)

    def _read(self, block: int) -> bytes:
        self._count(block, 1)
        self.index.append(block)
        return self._read_block(block)


class _TooManyError(Exception):
    """More blocks than the inode counts."""
