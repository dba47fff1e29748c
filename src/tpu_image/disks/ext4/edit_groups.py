"""Block groups, for changing: taking and giving back blocks and inodes.

Layout: Linux ``fs/ext4/ext4.h``, ``struct ext4_group_desc``; Documentation/filesystems/ext4/group_descr.rst and
bitmaps.rst. Counts and checksums are written once, by :meth:`Groups.flush`.
"""

from __future__ import annotations

import struct

from tpu_image.disks.crc32c import crc32c
from tpu_image.disks.edited import EditedDisk, EditedSection
from tpu_image.disks.errors import DamagedError, UnsupportedError
from tpu_image.disks.ext4.bitmaps import Bitmaps, clear_runs
from tpu_image.disks.ext4.features import READ_ONLY_GDT_CHECKSUM
from tpu_image.disks.ext4.filesystem import BLOCK_UNINITIALISED, INODE_UNINITIALISED, Ext4FileSystem
from tpu_image.disks.ext4.mapping import Run
from tpu_image.disks.ext4.metadata_zone import MetadataZone
from tpu_image.disks.ext4.superblock import OFFSET, REPAIR, Superblock, sealed

FULL = "give the file system more room: tpu-image build --size, or remove what is not needed"


class Group:
    """One group's descriptor and bitmaps, in memory."""

    def __init__(self, number: int, descriptor: bytes) -> None:
        self.number = number
        self.descriptor = bytearray(descriptor)
        self.block_bitmap: bytearray | None = None
        self.inode_bitmap: bytearray | None = None

    def get(self, low: int, high: int, width: int = 2) -> int:
        """Read a number that is split over two fields; the high one exists in 64-byte descriptors alone."""
        value = int.from_bytes(self.descriptor[low : low + width], "little")
        if len(self.descriptor) >= 64:
            value |= int.from_bytes(self.descriptor[high : high + width], "little") << 8 * width
        return value

    def put(self, low: int, high: int, value: int, width: int = 2) -> None:
        """Write a number that is split over two fields."""
        data = value.to_bytes(2 * width, "little")
        self.descriptor[low : low + width] = data[:width]
        if len(self.descriptor) >= 64:
            self.descriptor[high : high + width] = data[width:]

    @property
    def flags(self) -> int:
        """What of the group was never initialised."""
        return int.from_bytes(self.descriptor[18:20], "little")

    def clear(self, flag: int) -> None:
        """Note that a part of the group is initialised now."""
        struct.pack_into("<H", self.descriptor, 18, self.flags & ~flag)

    def write_block_bitmap(
        self, disk: EditedDisk | EditedSection, superblock: Superblock, bitmap: bytes | bytearray
    ) -> None:
        """Write the block bitmap, a whole block, and note its checksum in the descriptor."""
        if superblock.has_checksums:
            checksum = crc32c(superblock.checksum_seed, bytes(bitmap[: superblock.clusters_per_group // 8]))
            self.put(24, 56, checksum)
        disk.write_at(self.block_bitmap_block * superblock.block_size, bytes(bitmap))

    def write_inode_bitmap(
        self, disk: EditedDisk | EditedSection, superblock: Superblock, bitmap: bytes | bytearray
    ) -> None:
        """Write the inode bitmap, a whole block, and note its checksum in the descriptor."""
        if superblock.has_checksums:
            checksum = crc32c(superblock.checksum_seed, bytes(bitmap[: superblock.inodes_per_group // 8]))
            self.put(26, 58, checksum)
        disk.write_at(self.inode_bitmap_block * superblock.block_size, bytes(bitmap))

    def seal(self, superblock: Superblock) -> None:
        """Bring the descriptor's checksum up to date, where the file system has them."""
        number = self.number.to_bytes(4, "little")
        before, behind = bytes(self.descriptor[:30]), bytes(self.descriptor[32:])
        if superblock.has_checksums:
            checksum = crc32c(superblock.checksum_seed, number + before + bytes(2) + behind) & 0xFFFF
        elif superblock.read_only & READ_ONLY_GDT_CHECKSUM:
            checksum = _crc16(superblock.uuid + number + before + behind)
        else:
            return
        struct.pack_into("<H", self.descriptor, 30, checksum)

    @property
    def block_bitmap_block(self) -> int:
        """Block of the block bitmap."""
        return self.get(0, 32, 4)

    @property
    def inode_bitmap_block(self) -> int:
        """Block of the inode bitmap."""
        return self.get(4, 36, 4)

    @property
    def free_blocks(self) -> int:
        """Blocks that are free by the descriptor."""
        return self.get(12, 44)

    @property
    def free_inodes(self) -> int:
        """Inodes that are free by the descriptor."""
        return self.get(14, 46)


class Groups:
    """All groups of a file system that is being edited."""

    def __init__(self, disk: EditedDisk | EditedSection, filesystem: Ext4FileSystem) -> None:
        self._disk = disk
        self._filesystem = filesystem
        self._bitmaps = Bitmaps(filesystem)
        self._superblock = filesystem.superblock
        self._zone = MetadataZone(filesystem, self._bitmaps)
        self._groups: dict[int, Group] = {}
        self._blocks_taken = 0
        self._inodes_taken = 0

    def group(self, number: int) -> Group:
        """Give a group, read on first use."""
        if number not in self._groups:
            self._filesystem.group(number)  # judges it
            data = self._disk.read_at(
                self._filesystem.descriptor_offset(number), self._superblock.descriptor_size
            )
            self._groups[number] = Group(number, data)
        return self._groups[number]

    def check_content(self, first: int, count: int) -> None:
        """Refuse blocks that no file can hold: beyond the end, or describing the file system itself.

        Raises:
            DamagedError: some are such blocks.
        """
        self._filesystem.check_blocks(first, count)
        if first < 1 or self._zone.touches(first, count):
            raise self._filesystem.damaged(f"a file holds block {first}, which describes the file system")

    def take_blocks(self, count: int, near: int) -> list[Run]:
        """Take free blocks, few runs rather than many, from group ``near`` on.

        Returns:
            Runs whose ``logical`` counts from 0.

        Raises:
            UnsupportedError: there are not enough.
        """
        runs: list[Run] = []
        done = 0
        for step in range(self._superblock.groups):
            if done == count:
                break
            number = (near + step) % self._superblock.groups
            for first, length in self._free_runs(number, count - done):
                runs.append(Run(done, first, length))
                done += length
        if done < count:
            raise UnsupportedError(f"no room for {count} more blocks", self._disk.name, FULL)
        return runs

    def _free_runs(self, number: int, wanted: int) -> list[tuple[int, int]]:
        """Take up to ``wanted`` blocks of one group: (first block, length) each."""
        group = self.group(number)
        if not group.free_blocks:
            return []
        bitmap = self._block_bitmap(group)
        base = self._superblock.first_block + number * self._superblock.blocks_per_group
        runs: list[tuple[int, int]] = []
        taken = 0
        for start, length in clear_runs(_number(bitmap), self._bitmaps.blocks_of(number)):
            length = min(length, wanted - taken)
            _set_bits(bitmap, start, length, used=True)
            runs.append((base + start, length))
            taken += length
            if taken == wanted:
                break
        group.put(12, 44, group.free_blocks - taken)
        self._blocks_taken += taken
        return runs

    def give_back_blocks(self, first: int, count: int) -> None:
        """Make blocks free again.

        Raises:
            DamagedError: they are free, or no file can hold them.
        """
        self.check_content(first, count)
        while count:
            offset = first - self._superblock.first_block
            number, start = divmod(offset, self._superblock.blocks_per_group)
            length = min(count, self._superblock.blocks_per_group - start)
            group = self.group(number)
            bitmap = self._block_bitmap(group)
            if next(clear_runs(_number(bitmap) >> start, length), None) is not None:
                raise self._filesystem.damaged(f"block {first} or one behind it is free and in use at once")
            _set_bits(bitmap, start, length, used=False)
            group.put(12, 44, group.free_blocks + length)
            self._blocks_taken -= length
            first, count = first + length, count - length

    def take_inode(self, near: int, *, directory: bool) -> int:
        """Take a free inode, from group ``near`` on, and give its number.

        Raises:
            UnsupportedError: there is none.
        """
        per_group = self._superblock.inodes_per_group
        for step in range(self._superblock.groups):
            group = self.group((near + step) % self._superblock.groups)
            if not group.free_inodes:
                continue
            bitmap = self._inode_bitmap(group)
            index = next(start for start, _ in clear_runs(_number(bitmap), per_group))
            _set_bits(bitmap, index, 1, used=True)
            group.put(14, 46, group.free_inodes - 1)
            group.put(28, 50, min(group.get(28, 50), per_group - index - 1))
            if directory:
                group.put(16, 48, group.get(16, 48) + 1)
            self._inodes_taken += 1
            return group.number * per_group + index + 1
        raise UnsupportedError("no inode is free", self._disk.name, FULL)

    def give_back_inode(self, number: int, *, directory: bool = False) -> None:
        """Make an inode free again.

        Raises:
            DamagedError: it is free.
        """
        group_number, index = divmod(number - 1, self._superblock.inodes_per_group)
        group = self.group(group_number)
        bitmap = self._inode_bitmap(group)
        if not bitmap[index >> 3] >> (index & 7) & 1:
            raise self._filesystem.damaged(f"inode {number} is free and in use at once")
        _set_bits(bitmap, index, 1, used=False)
        group.put(14, 46, group.free_inodes + 1)
        if directory:
            group.put(16, 48, max(0, group.get(16, 48) - 1))
        self._inodes_taken -= 1

    def _block_bitmap(self, group: Group) -> bytearray:
        """A group's block bitmap for changing, judged on first use as the kernel does (``ext4_validate_block_bitmap``).

        One that was never written becomes what the kernel would write: the group's own metadata, and what is beyond
        the end.
        """
        if group.block_bitmap is None:
            number, inside = group.number, self._bitmaps.blocks_of(group.number)
            used = self._bitmaps.block_bitmap(number)
            self._check_count(group, used, inside, group.free_blocks, "blocks")
            if self._zone.bits(self._filesystem.first_block_of(number), inside) & ~used:
                raise self._filesystem.damaged(f"group {number} counts blocks as free that describe groups")
            group.block_bitmap = self._whole_bitmap(used, inside)
            group.clear(BLOCK_UNINITIALISED)
        return group.block_bitmap

    def _inode_bitmap(self, group: Group) -> bytearray:
        """A group's inode bitmap for changing, judged on first use."""
        if group.inode_bitmap is None:
            inside = self._superblock.inodes_per_group
            used = self._bitmaps.inode_bitmap(group.number)
            self._check_count(group, used, inside, group.free_inodes, "inodes")
            reserved = (1 << self._superblock.first_inode - 1) - 1
            if group.number == 0 and reserved & ~used & ((1 << inside) - 1):
                raise self._filesystem.damaged("an inode of the file system's own is counted as free")
            group.inode_bitmap = self._whole_bitmap(used, inside)
            group.clear(INODE_UNINITIALISED)
        return group.inode_bitmap

    def _check_count(self, group: Group, used: int, inside: int, counted: int, what: str) -> None:
        free = sum(length for _, length in clear_runs(used, inside))
        if free != counted:
            raise self._filesystem.damaged(
                f"group {group.number} counts {counted} free {what} and has {free}"
            )

    def _whole_bitmap(self, used: int, inside: int) -> bytearray:
        """A bitmap as a block, in which what is beyond the group is in use."""
        size = self._superblock.block_size
        beyond = (1 << 8 * size) - (1 << inside)
        return bytearray((used | beyond).to_bytes(size, "little"))

    def flush(self) -> None:
        """Write bitmaps, descriptors and the superblock's counts, each with its checksum."""
        for group in self._groups.values():
            if group.block_bitmap is not None:
                group.write_block_bitmap(self._disk, self._superblock, group.block_bitmap)
            if group.inode_bitmap is not None:
                group.write_inode_bitmap(self._disk, self._superblock, group.inode_bitmap)
            if group.block_bitmap is not None or group.inode_bitmap is not None:
                group.seal(self._superblock)
                self._disk.write_at(self._filesystem.descriptor_offset(group.number), bytes(group.descriptor))
        self._write_counts()

    def _write_counts(self) -> None:
        data = bytearray(self._disk.read_at(OFFSET, 1024))
        free_blocks = int.from_bytes(data[12:16], "little") | int.from_bytes(data[344:348], "little") << 32
        free_blocks -= self._blocks_taken
        free_inodes = int.from_bytes(data[16:20], "little") - self._inodes_taken
        if free_blocks < 0 or free_inodes < 0:
            raise DamagedError("the superblock counts too few free blocks or inodes", self._disk.name, REPAIR)
        self._blocks_taken = self._inodes_taken = 0
        data[12:20] = (free_blocks & 0xFFFF_FFFF).to_bytes(4, "little") + free_inodes.to_bytes(4, "little")
        data[344:348] = (free_blocks >> 32).to_bytes(4, "little")
        self._disk.write_at(OFFSET, sealed(data))


def _number(bitmap: bytearray) -> int:
    return int.from_bytes(bitmap, "little")


def _set_bits(bitmap: bytearray, start: int, length: int, *, used: bool) -> None:
    for bit in range(start, start + length):
        if used:
            bitmap[bit >> 3] |= 1 << (bit & 7)
        else:
            bitmap[bit >> 3] &= ~(1 << (bit & 7))


def _crc16(data: bytes) -> int:
    """CRC-16 with the polynomial 0xA001 and all ones to start, as Linux ``lib/crc16.c`` computes it."""
    value = 0xFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ 0xA001 if value & 1 else value >> 1
    return value
