"""The journal of an ext4: finding its committed writes and laying them over the file system, as a mount would.

Format: Linux, Documentation/filesystems/ext4/journal.rst; the three passes and what ends them: fs/jbd2/recovery.c.
Numbers are big-endian.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from tpu_image.disks.crc32c import crc32c
from tpu_image.disks.errors import DamagedError, UnsupportedError
from tpu_image.disks.ext4.filesystem import Ext4FileSystem
from tpu_image.disks.ext4.mapping import Run
from tpu_image.disks.ext4.superblock import OFFSET, SIZE, UNCLEAN_REMEDY

MAGIC = 0xC03B3998
DESCRIPTOR, COMMIT, SUPERBLOCK_1, SUPERBLOCK_2, REVOKE = 1, 2, 3, 4, 5

COMPATIBLE_CHECKSUM = 0x1
INCOMPATIBLE_REVOKE, INCOMPATIBLE_64BIT, INCOMPATIBLE_ASYNC, CHECKSUM_2, CHECKSUM_3 = 1, 2, 4, 8, 16
KNOWN = INCOMPATIBLE_REVOKE | INCOMPATIBLE_64BIT | INCOMPATIBLE_ASYNC | CHECKSUM_2 | CHECKSUM_3
FAST_COMMIT = 0x20

TAG_ESCAPED, TAG_SAME_UUID, TAG_LAST = 1, 2, 8

SUPERBLOCK_SIZE = 1024
JOURNAL_INODE, JOURNAL_DEVICE = slice(224, 228), slice(228, 232)
"""Where an ext4's superblock says which inode, or which other device, holds the journal."""

LENGTH_LIMIT = 10_240_000
"""Blocks of a journal at most (``JBD2_MAX_JOURNAL_BLOCKS``, e2fsprogs)."""

WRITES_LIMIT = 128 * 1024 * 1024
"""Bytes of the journal that are read at most: what can be held over a disk, and some ten seconds of checksums."""

_REVERSED = bytes(int(f"{value:08b}"[::-1], 2) for value in range(256))


class Header(NamedTuple):
    """What a journal's superblock says; blocks are the journal's own."""

    length: int
    first: int
    start: int
    sequence: int
    compatible: int
    incompatible: int
    seed: int

    @property
    def has_checksums(self) -> bool:
        """Whether its blocks carry CRC-32C."""
        return bool(self.incompatible & (CHECKSUM_2 | CHECKSUM_3))


class Tag(NamedTuple):
    """One write: the block of the file system, and where in the journal its content is."""

    block: int
    place: int
    escaped: bool
    checksum: int


class Transaction(NamedTuple):
    """A committed transaction: its writes in order, and the blocks whose earlier writes do not count."""

    sequence: int
    tags: tuple[Tag, ...]
    revoked: frozenset[int]


class Journal:
    """Reads the journal of a file system that was not unmounted."""

    def __init__(self, filesystem: Ext4FileSystem) -> None:
        """Find the journal and judge its superblock.

        Raises:
            UnsupportedError: it is on another device, or has a feature that is not replayed; named.
            DamagedError: it contradicts itself.
        """
        self._filesystem = filesystem
        self._size = filesystem.block_size
        data = filesystem.source.read_at(OFFSET, SIZE)
        if any(data[JOURNAL_DEVICE]):
            raise self._unsupported("is on another device")
        self.inode = filesystem.inode(int.from_bytes(data[JOURNAL_INODE], "little"))
        self._runs: list[Run] = []
        self._length = 0
        for run in filesystem.runs(self.inode):
            if run.logical != self._length:
                raise self._damaged("has a hole")
            self._runs.append(run)
            self._length += run.blocks
        if not 0 < self._length <= LENGTH_LIMIT:
            raise self._damaged(f"has {self._length} blocks")
        self.header = self._read_header()

    def _damaged(self, what: str) -> DamagedError:
        return self._filesystem.damaged(f"the journal needs replay and {what}")

    def _unsupported(self, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"the journal needs replay and {what}", self._filesystem.source.name, UNCLEAN_REMEDY
        )

    def place(self, block: int) -> int:
        """Byte offset of one of the journal's blocks in the file system."""
        run = self._runs[bisect_right(self._runs, block, key=lambda run: run.logical) - 1]
        return (run.physical + block - run.logical) * self._size

    def _read(self, block: int) -> bytes:
        return self._filesystem.source.read_at(self.place(block), self._size)

    def _read_header(self) -> Header:
        data = self._read(0)[:SUPERBLOCK_SIZE]
        magic, kind, _, block_size, length, first, sequence, start, error = struct.unpack_from(">9I", data)
        compatible, incompatible, _ = struct.unpack_from(">3I", data, 36)
        if magic != MAGIC or kind not in (SUPERBLOCK_1, SUPERBLOCK_2) or block_size != self._size:
            raise self._damaged("its superblock is damaged")
        if kind == SUPERBLOCK_1:
            compatible = incompatible = 0
        if incompatible & ~KNOWN:
            fast = incompatible & ~KNOWN == FAST_COMMIT
            raise self._unsupported("has the feature " + ("fast_commit" if fast else f"{incompatible:#x}"))
        header = Header(
            length, first, start, sequence, compatible, incompatible, crc32c(0xFFFF_FFFF, data[48:64])
        )
        if header.has_checksums and crc32c(0xFFFF_FFFF, data[:252] + bytes(4) + data[256:]) != int.from_bytes(
            data[252:256], "big"
        ):
            raise self._damaged("the checksum of its superblock is wrong")
        if not 0 < first < length <= self._length or not (start == 0 or first <= start < length):
            raise self._damaged("its superblock names places outside of it")
        if error:
            raise self._damaged("the kernel noted an error in it")
        return header

    def finished(self, following: int) -> bytes:
        """The journal's superblock once all is replayed; ``following`` is the sequence to go on with."""
        data = bytearray(self._read(0)[:SUPERBLOCK_SIZE])
        struct.pack_into(">II", data, 24, following & 0xFFFF_FFFF, 0)
        if self.header.has_checksums:
            data[252:256] = bytes(4)
            data[252:256] = crc32c(0xFFFF_FFFF, bytes(data)).to_bytes(4, "big")
        return bytes(data)

    # Reading

    def transactions(self) -> Iterator[Transaction]:
        """Give the committed transactions in order; one that was never committed ends them.

        Raises:
            DamagedError: a committed transaction does not hold what it held.
            UnsupportedError: they hold more than :data:`WRITES_LIMIT`.
        """
        position, sequence, left = self.header.start, self.header.sequence, self.header.length
        tags: list[Tag] = []
        revoked: set[int] = set()
        torn = False
        checksum = 0
        while position and left > 0:
            data = self._read(position)
            magic, kind, found = struct.unpack_from(">3I", data)
            if magic != MAGIC or found != sequence:
                return
            steps = 1
            if kind == DESCRIPTOR:
                torn = torn or not self._tail_is_right(data)
                described = self._tags(data, position)
                tags += described
                steps += len(described)
                self._require_few(left - steps)
                if self.header.compatible & COMPATIBLE_CHECKSUM:
                    contents = (self._read(tag.place) for tag in described)
                    for content in (data, *contents):
                        checksum = zlib.crc32(content.translate(_REVERSED), checksum)
            elif kind == REVOKE:
                torn = torn or not self._tail_is_right(data)
                revoked |= self._revoked(data)
            elif kind == COMMIT:
                if torn or not self._commit_is_right(data, checksum):
                    raise self._damaged(f"the checksum of its transaction {sequence} is wrong")
                yield Transaction(sequence, tuple(tags), frozenset(revoked))
                sequence = sequence + 1 & 0xFFFF_FFFF
                tags, revoked, torn, checksum = [], set(), False, 0
            else:
                return
            position = self._after(position, steps)
            left -= steps
            self._require_few(left)

    def _require_few(self, left: int) -> None:
        """Refuse to go on, with so many blocks of the journal left, where those before were too many."""
        if (self.header.length - left) * self._size > WRITES_LIMIT:
            raise self._unsupported(f"holds more than {WRITES_LIMIT >> 20} MiB")

    def content(self, transaction: Transaction, tag: Tag) -> bytes:
        """What a write puts into its block.

        Raises:
            DamagedError: the journal does not hold it any more.
        """
        data = self._read(tag.place)
        if self.header.has_checksums:
            value = crc32c(self.header.seed, transaction.sequence.to_bytes(4, "big"))
            mask = 0xFFFF_FFFF if self.header.incompatible & CHECKSUM_3 else 0xFFFF
            if crc32c(value, data) & mask != tag.checksum:
                raise self._damaged(
                    f"the checksum of a block of its transaction {transaction.sequence} is wrong"
                )
        return MAGIC.to_bytes(4, "big") + data[4:] if tag.escaped else data

    def _after(self, position: int, steps: int) -> int:
        """The block ``steps`` behind one; the journal goes round."""
        position += steps
        length = self.header.length
        return position if position < length else position - (length - self.header.first)

    def _tags(self, data: bytes, position: int) -> list[Tag]:
        """Take a descriptor block apart."""
        third = self.header.incompatible & CHECKSUM_3
        wide = self.header.incompatible & INCOMPATIBLE_64BIT
        size = 16 if third else 8 + (4 if wide else 0) + (2 if self.header.incompatible & CHECKSUM_2 else 0)
        end = self._size - (4 if self.header.has_checksums else 0)
        tags: list[Tag] = []
        offset, last = 12, False
        while not last and offset + size <= end and len(tags) < self.header.length:
            if third:
                low, flags, high, checksum = struct.unpack_from(">4I", data, offset)
            else:
                low, checksum, flags = struct.unpack_from(">IHH", data, offset)
                high = int.from_bytes(data[offset + 8 : offset + 12], "big") if wide else 0
            block = low | (high << 32 if wide else 0)
            place = self._after(position, len(tags) + 1)
            tags.append(Tag(block, place, bool(flags & TAG_ESCAPED), checksum))
            offset += size + (0 if flags & TAG_SAME_UUID else 16)
            last = bool(flags & TAG_LAST)
        return tags

    def _revoked(self, data: bytes) -> set[int]:
        """Take a revoke block apart."""
        width = 8 if self.header.incompatible & INCOMPATIBLE_64BIT else 4
        used = int.from_bytes(data[12:16], "big")
        end = min(used, self._size - (4 if self.header.has_checksums else 0))
        return {int.from_bytes(data[at : at + width], "big") for at in range(16, end - width + 1, width)}

    def _tail_is_right(self, data: bytes) -> bool:
        """Whether the checksum at the end of a descriptor or revoke block is right."""
        if not self.header.has_checksums:
            return True
        return crc32c(self.header.seed, data[:-4] + bytes(4)) == int.from_bytes(data[-4:], "big")

    def _commit_is_right(self, data: bytes, checksum: int) -> bool:
        """Whether a commit block's checksum is right: of itself, or (version 1) of all that it commits."""
        stored = int.from_bytes(data[16:20], "big")
        if self.header.has_checksums:
            return crc32c(self.header.seed, data[:16] + bytes(4) + data[20:]) == stored
        if not self.header.compatible & COMPATIBLE_CHECKSUM or data[12:14] == bytes(2):
            return True
        # Linux counts it with the most significant bit first and without an inversion at the end (crc32_be).
        return int(f"{checksum ^ 0xFFFF_FFFF:032b}"[::-1], 2) == stored
