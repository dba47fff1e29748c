"""Bringing an ext4 that was not unmounted to rest, in memory over its disk: what a mount does before all else.

The journal's committed writes are put in place, then inodes that nothing refers to any more are given back (Linux,
fs/ext4/orphan.c). The image itself stays as it is.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Iterator

from tpu_image.disks.crc32c import crc32c
from tpu_image.disks.edited import EditedDisk, EditedSection
from tpu_image.disks.ext4.edit_groups import Groups
from tpu_image.disks.ext4.edit_inode import InodeRecord
from tpu_image.disks.ext4.edit_walk import FILE_BLOCKS
from tpu_image.disks.ext4.editor import Ext4Editor
from tpu_image.disks.ext4.features import INCOMPATIBLE_RECOVER, READ_ONLY_ORPHAN_PRESENT
from tpu_image.disks.ext4.filesystem import Ext4FileSystem
from tpu_image.disks.ext4.journal import Journal
from tpu_image.disks.ext4.mapping import Run, runs_of
from tpu_image.disks.ext4.superblock import OFFSET, SIZE, sealed

LAST_ORPHAN = 232
"""Where the superblock names the first inode of the list of orphans (``s_last_orphan``)."""

NEXT_ORPHAN = slice(20, 24)
"""Where an orphan names the next one: in the place of its time of deletion."""

ORPHAN_FILE = slice(640, 644)
"""Where the superblock names the inode of the orphan file (``s_orphan_file_inum``)."""

ORPHAN_TAIL = 8
"""Bytes at the end of the orphan file's blocks: magic and checksum."""

ORPHAN_FILE_LIMIT = 512
"""Blocks of the orphan file at most (``EXT4_MAX_ORPHAN_FILE_BLOCKS``)."""

ATTRIBUTE_MAGIC = b"\x00\x00\x02\xea"


def replay(section: EditedSection) -> int:
    """Replay the journal of a partition's file system; give how many blocks that changed.

    Raises:
        UnsupportedError: the journal, or an orphan, has a form that is not handled; named.
        DamagedError: the journal, or the file system that it leads to, contradicts itself.
    """
    filesystem = Ext4FileSystem(section, allow_unclean=True)
    journal = Journal(filesystem)
    transactions = list(journal.transactions())
    revoked = {block: t.sequence for t in transactions for block in t.revoked}
    written: set[int] = set()
    for transaction in transactions:
        for tag in transaction.tags:
            if tag.block in revoked and not _is_later(transaction.sequence, revoked[tag.block]):
                continue
            if not 0 <= tag.block < filesystem.superblock.blocks:
                raise filesystem.damaged(f"the journal writes to block {tag.block}, which is out of range")
            section.write_at(tag.block * filesystem.block_size, journal.content(transaction, tag))
            written.add(tag.block)
    following = (transactions[-1].sequence if transactions else journal.header.sequence - 1) + 2
    section.write_at(journal.place(0), journal.finished(following))
    _come_to_rest(section)
    _release_orphans(section)
    return len(written)


def _is_later(sequence: int, other: int) -> bool:
    """Whether a transaction comes after another; the numbers go round (``tid_gt``)."""
    return 0 < sequence - other & 0xFFFF_FFFF < 1 << 31


def _come_to_rest(section: EditedSection) -> None:
    """Take the mark for replay away, and count what is free, which the journal does not keep in the superblock."""
    data = bytearray(section.read_at(OFFSET, SIZE))
    incompatible: int = struct.unpack_from("<I", data, 96)[0]
    struct.pack_into("<I", data, 96, incompatible & ~INCOMPATIBLE_RECOVER)
    section.write_at(OFFSET, sealed(data))
    filesystem = Ext4FileSystem(section)
    groups = Groups(section, filesystem)
    free = [groups.group(number) for number in range(filesystem.superblock.groups)]
    blocks = sum(group.free_blocks for group in free)
    struct.pack_into("<II", data, 12, blocks & 0xFFFF_FFFF, sum(group.free_inodes for group in free))
    struct.pack_into("<I", data, 344, blocks >> 32)
    section.write_at(OFFSET, sealed(data))


def _release_orphans(section: EditedSection) -> None:
    data = bytearray(section.read_at(OFFSET, SIZE))
    orphan_file = int.from_bytes(data[ORPHAN_FILE], "little")
    first: int = struct.unpack_from("<I", data, LAST_ORPHAN)[0]
    read_only: int = struct.unpack_from("<I", data, 100)[0]
    present = read_only & READ_ONLY_ORPHAN_PRESENT
    if not first and not present:
        return
    editor = OrphanEditor(section, time=int.from_bytes(data[48:52], "little"))
    editor.release_list(first)
    if present:
        editor.release_file(orphan_file)
    editor.flush()
    data = bytearray(section.read_at(OFFSET, SIZE))
    struct.pack_into("<I", data, 100, read_only & ~READ_ONLY_ORPHAN_PRESENT)
    struct.pack_into("<I", data, LAST_ORPHAN, 0)
    section.write_at(OFFSET, sealed(data))


class OrphanEditor(Ext4Editor):
    """Gives back the inodes that were open, or being cut short, when the machine stopped."""

    def __init__(self, disk: EditedDisk | EditedSection, *, time: int) -> None:
        super().__init__(disk, time=time)
        self._seen: set[int] = set()

    def release_list(self, number: int) -> None:
        """Release the inodes of the list that starts with one; 0 ends it."""
        while number:
            number = self._release(number)

    def release_file(self, number: int) -> None:
        """Release the inodes that the orphan file names, and empty it."""
        size = self._superblock.block_size
        record = self._load_orphan(number)
        self._seen.discard(number)
        runs = self._runs(record)
        if sum(run.blocks for run in runs) > ORPHAN_FILE_LIMIT:
            raise self._filesystem.damaged(f"the orphan file, inode {number}, is larger than any")
        for block in [b for run in runs for b in range(run.physical, run.physical + run.blocks)]:
            data = self._block(block)
            for (orphan,) in struct.iter_unpack("<I", data[: size - ORPHAN_TAIL]):
                if orphan:
                    self._release(orphan)
            empty = bytes(size - ORPHAN_TAIL)
            seed = crc32c(record.checksum_seed, block.to_bytes(8, "little"))
            checksum = crc32c(seed, empty) if self._superblock.has_checksums else 0
            self._blocks[block] = empty + data[size - ORPHAN_TAIL : size - 4] + checksum.to_bytes(4, "little")

    def _load_orphan(self, number: int) -> InodeRecord:
        if number in self._seen:
            raise self._filesystem.damaged(f"inode {number} is twice among the orphans")
        self._seen.add(number)
        self._filesystem.inode(number)  # judges number, place and checksum
        return self._load(number)

    def _release(self, number: int) -> int:
        """Release one inode: all of it, or where names lead to it, what is behind its end; give the next."""
        if number < self._superblock.first_inode:
            raise self._filesystem.damaged(f"inode {number} of the file system's own is among the orphans")
        record = self._load_orphan(number)
        following = int.from_bytes(record.data[NEXT_ORPHAN], "little")
        record.data[NEXT_ORPHAN] = bytes(4)
        if record.inode.links:
            self._cut_short(record)
        else:
            self._delete(record)
        return following

    def _delete(self, record: InodeRecord) -> None:
        directory = stat.S_ISDIR(record.inode.mode)
        walk = self._walk(record, unwritten=True)
        for run in [*walk.runs, *(Run(0, block, 1) for block in walk.index)]:
            self._give_back(run)
        self._release_attributes(record)
        record.mark_deleted(self._time)
        self._groups.give_back_inode(record.number, directory=directory)

    def _cut_short(self, record: InodeRecord) -> None:
        """Give back the blocks behind the end; those that were never written on the way read as zero without one."""
        if not stat.S_ISREG(record.inode.mode):
            return
        size = self._superblock.block_size
        end, rest = divmod(record.inode.size, size)
        walk = self._walk(record, unwritten=True)
        written = {run.physical for run in self._written(record)}
        kept: list[Run] = []
        for run in walk.runs:
            count = (
                0 if run.physical not in written else max(0, min(run.blocks, end + (rest > 0) - run.logical))
            )
            if count:
                kept.append(Run(run.logical, run.physical, count))
            if count < run.blocks:
                self._give_back(Run(0, run.physical + count, run.blocks - count))
        for run in kept:
            if rest and run.logical <= end < run.logical + run.blocks:
                block = run.physical + end - run.logical
                self._blocks[block] = self._block(block)[:rest].ljust(size, b"\0")
        self._map(record, kept, unwritten=True)

    def _written(self, record: InodeRecord) -> Iterator[Run]:
        return runs_of(record.inode, 0, FILE_BLOCKS, self._superblock.block_size, self._block)

    def _release_attributes(self, record: InodeRecord) -> None:
        """Count one reference less to a block of extended attributes; give it back with the last."""
        block = record.inode.attribute_block
        if not block:
            return
        data = bytearray(self._block(block))
        references: int = struct.unpack_from("<I", data, 4)[0]
        if bytes(data[:4]) != ATTRIBUTE_MAGIC or not references:
            raise self._filesystem.damaged(f"block {block} does not hold extended attributes")
        if references == 1:
            self._give_back(Run(0, block, 1))
            return
        struct.pack_into("<I", data, 4, references - 1)
        if self._superblock.has_checksums:
            data[16:20] = bytes(4)
            seed = crc32c(self._superblock.checksum_seed, block.to_bytes(8, "little"))
            data[16:20] = crc32c(seed, bytes(data)).to_bytes(4, "little")
        self._blocks[block] = bytes(data)
