"""The superblock of an ext4: geometry, features, and which of them are not supported."""

from __future__ import annotations

import struct
from typing import NamedTuple

from tpu_image.disks.crc32c import crc32c
from tpu_image.disks.errors import DamagedError, UnsupportedError
from tpu_image.disks.ext4.features import (
    COMPATIBLE_NAMES,
    COMPATIBLE_SPARSE_SUPER2,
    INCOMPATIBLE_64BIT,
    INCOMPATIBLE_CSUM_SEED,
    INCOMPATIBLE_META_BG,
    INCOMPATIBLE_NAMES,
    INCOMPATIBLE_READABLE,
    INCOMPATIBLE_RECOVER,
    READ_ONLY_BIGALLOC,
    READ_ONLY_METADATA_CHECKSUM,
    READ_ONLY_NAMES,
    READ_ONLY_SPARSE_SUPER,
    feature_names,
)
from tpu_image.disks.source import BlockSource

OFFSET, SIZE = 1024, 1024
MAGIC = 0xEF53

BLOCK_BITS_LIMIT = 6
"""log2 of the largest block, 64 KiB, over 1 KiB."""

_NUMBERS = struct.Struct("<IIIIIIIIII")

REPAIR = "repair a copy with: e2fsck -fy"
CONVERT = "copy its files to a file system without it"
UNCLEAN_REMEDY = "shut the machine down cleanly and take the image again, or repair a copy with: e2fsck -fy"


class Superblock(NamedTuple):
    """What a superblock says; sizes in bytes unless the name says otherwise.

    ``first_inode`` is the first that is not the file system's own (root and journal are below it).
    """

    block_size: int
    blocks: int
    inodes: int
    first_inode: int
    first_block: int
    blocks_per_group: int
    clusters_per_group: int
    cluster_blocks: int
    inodes_per_group: int
    inode_size: int
    descriptor_size: int
    reserved_gdt_blocks: int
    first_meta_group: int
    compatible: int
    incompatible: int
    read_only: int
    state: int
    uuid: bytes
    label: str
    checksum_seed: int
    backup_groups: tuple[int, int]

    @property
    def groups(self) -> int:
        """Block groups."""
        return -(-(self.blocks - self.first_block) // self.blocks_per_group)

    @property
    def has_checksums(self) -> bool:
        """Whether metadata carries checksums (metadata_csum)."""
        return bool(self.read_only & READ_ONLY_METADATA_CHECKSUM)

    @property
    def needs_recovery(self) -> bool:
        """Whether the journal holds writes that are not in place yet."""
        return bool(self.incompatible & INCOMPATIBLE_RECOVER)

    @property
    def is_clean(self) -> bool:
        """Whether it was unmounted (``EXT4_VALID_FS``) and neither the kernel nor e2fsck noted errors."""
        return self.state & 3 == 1

    @property
    def features(self) -> tuple[str, ...]:
        """Names of all features that are set, unknown bits as numbers."""
        return (
            *feature_names(self.compatible, COMPATIBLE_NAMES),
            *self.incompatible_features,
            *feature_names(self.read_only, READ_ONLY_NAMES),
        )

    @property
    def incompatible_features(self) -> tuple[str, ...]:
        """Names of the features that a reader must know."""
        return feature_names(self.incompatible, INCOMPATIBLE_NAMES)

    @property
    def inode_table_blocks(self) -> int:
        """Blocks of a group's inode table."""
        return -(-self.inodes_per_group * self.inode_size // self.block_size)

    @property
    def groups_per_block(self) -> int:
        """Descriptors that a block holds: the groups of a meta group."""
        return self.block_size // self.descriptor_size

    @property
    def descriptor_blocks(self) -> int:
        """Blocks of the descriptor table at the start of the file system: all, or those before the first meta group."""
        if self.incompatible & INCOMPATIBLE_META_BG:
            return self.first_meta_group
        return -(-self.groups // self.groups_per_block)

    def in_meta_group(self, group: int) -> bool:
        """Whether a group's descriptor stands in the groups it describes (meta_bg)."""
        meta_bg = self.incompatible & INCOMPATIBLE_META_BG
        return bool(meta_bg) and group // self.groups_per_block >= self.first_meta_group

    def base_blocks(self, group: int) -> int:
        """Blocks that the copies of superblock and descriptors take at the start of a group."""
        copies = 1 if self.group_has_backup(group) else 0
        if self.in_meta_group(group):
            return copies + (group % self.groups_per_block in (0, 1, self.groups_per_block - 1))
        return copies and copies + self.descriptor_blocks + self.reserved_gdt_blocks

    def first_block_of(self, group: int) -> int:
        """Number of a group's first block."""
        return self.first_block + group * self.blocks_per_group

    def blocks_of(self, group: int) -> int:
        """How many blocks a group has; the last may have fewer than the others."""
        return min(self.blocks_per_group, self.blocks - self.first_block_of(group))

    def descriptor_block(self, index: int) -> int:
        """Find a block of the descriptor table, which meta_bg spreads over the groups it describes."""
        group = index * self.groups_per_block
        if not self.in_meta_group(group):
            return OFFSET // self.block_size + 1 + index
        return self.first_block_of(group) + self.group_has_backup(group)

    def group_has_backup(self, group: int) -> bool:
        """Whether a group starts with a copy of the superblock and the descriptors."""
        if self.compatible & COMPATIBLE_SPARSE_SUPER2:
            return group == 0 or group in self.backup_groups
        if group <= 1 or not self.read_only & READ_ONLY_SPARSE_SUPER:
            return True
        return any(_is_power(group, base) for base in (3, 5, 7))


def read_superblock(source: BlockSource, *, allow_unclean: bool = False) -> Superblock:
    """Read and judge the superblock.

    Args:
        source: the file system's partition.
        allow_unclean: read a file system whose journal needs replay as it is, for one who replays it.

    Raises:
        UnsupportedError: an incompatible feature that reading does not understand; a journal to replay.
        DamagedError: a value contradicts another, or the file system is larger than its partition.
    """
    if source.size < OFFSET + SIZE:
        raise DamagedError("is too small for an ext4 file system", source.name)
    data = source.read_at(OFFSET, SIZE)
    superblock = _parse(source, data)
    _verify(source, data, superblock)
    _refuse(source, superblock, allow_unclean=allow_unclean)
    return superblock


def sealed(data: bytes | bytearray) -> bytes:
    """Give a superblock's bytes with the checksum right, where the file system has checksums."""
    if not int.from_bytes(data[100:104], "little") & READ_ONLY_METADATA_CHECKSUM:
        return bytes(data)
    return bytes(data[:1020]) + crc32c(0xFFFF_FFFF, bytes(data[:1020])).to_bytes(4, "little")


def _parse(source: BlockSource, data: bytes) -> Superblock:
    inodes, blocks_low, _, _, _, first_block, log_size, log_cluster, per_group, clusters_per_group = (
        _NUMBERS.unpack_from(data)
    )
    inodes_per_group, magic, state = struct.unpack_from("<I12xHH", data, 40)
    revision, first_inode, inode_size = struct.unpack_from("<I4xIH", data, 76)
    compatible, incompatible, read_only = struct.unpack_from("<III", data, 92)
    if magic != MAGIC:
        raise DamagedError("the superblock of the ext4 file system is damaged", source.name)
    if log_size > BLOCK_BITS_LIMIT or (revision and not 11 <= first_inode <= inodes):
        raise DamagedError(
            f"the superblock has a block size of 2^{10 + log_size} and first inode {first_inode}", source.name
        )
    wide = bool(incompatible & INCOMPATIBLE_64BIT)
    bigalloc = bool(read_only & READ_ONLY_BIGALLOC)
    uuid = data[104:120]
    return Superblock(
        block_size=1024 << log_size,
        blocks=blocks_low | (int.from_bytes(data[336:340], "little") << 32 if wide else 0),
        inodes=inodes,
        first_inode=first_inode if revision else 11,
        first_block=first_block,
        blocks_per_group=per_group,
        clusters_per_group=clusters_per_group if bigalloc else per_group,
        cluster_blocks=1 << min(log_cluster - log_size, 20) if bigalloc and log_cluster >= log_size else 1,
        inodes_per_group=inodes_per_group,
        inode_size=inode_size if revision else 128,
        descriptor_size=int.from_bytes(data[254:256], "little") if wide else 32,
        reserved_gdt_blocks=int.from_bytes(data[206:208], "little"),
        first_meta_group=int.from_bytes(data[260:264], "little"),
        compatible=compatible,
        incompatible=incompatible,
        read_only=read_only,
        state=state,
        uuid=uuid,
        label=data[120:136].split(b"\0")[0].decode("utf-8", "replace"),
        checksum_seed=_checksum_seed(data, incompatible, uuid),
        backup_groups=struct.unpack_from("<II", data, 588),
    )


def _checksum_seed(data: bytes, incompatible: int, uuid: bytes) -> int:
    if incompatible & INCOMPATIBLE_CSUM_SEED:
        return int.from_bytes(data[624:628], "little")
    return crc32c(0xFFFF_FFFF, uuid)


def _verify(source: BlockSource, data: bytes, superblock: Superblock) -> None:
    if superblock.has_checksums and crc32c(0xFFFF_FFFF, data[:1020]) != int.from_bytes(data[1020:], "little"):
        raise DamagedError("the checksum of the superblock is wrong", source.name, REPAIR)
    impossible = _impossible(superblock)
    if impossible:
        raise DamagedError(f"the superblock has an impossible {impossible}", source.name, REPAIR)
    if superblock.blocks * superblock.block_size > source.size:
        raise DamagedError(
            f"the file system has {superblock.blocks} blocks, more than its partition",
            source.name,
        )


def _impossible(superblock: Superblock) -> str:
    """Name the first value that contradicts the format; empty for none."""
    bits = 8 * superblock.block_size
    size = superblock.inode_size
    if size < 128 or size > superblock.block_size or size & (size - 1):
        return f"inode size of {size}"
    if superblock.descriptor_size not in (32, 64, 128, 256, 512, 1024):
        return f"descriptor size of {superblock.descriptor_size}"
    if superblock.first_block > 1 or superblock.blocks <= superblock.first_block:
        return f"first block {superblock.first_block} of {superblock.blocks}"
    if not 0 < superblock.clusters_per_group <= bits or not 0 < superblock.inodes_per_group <= bits:
        return "number of clusters or inodes in a group"
    if superblock.blocks_per_group != superblock.clusters_per_group * superblock.cluster_blocks:
        return "number of blocks in a group"
    if superblock.inodes > superblock.groups * superblock.inodes_per_group:
        return f"number of {superblock.inodes} inodes"
    return ""


def _refuse(source: BlockSource, superblock: Superblock, *, allow_unclean: bool) -> None:
    refused = superblock.incompatible & ~INCOMPATIBLE_READABLE
    if refused:
        names = ", ".join(feature_names(refused, INCOMPATIBLE_NAMES))
        raise UnsupportedError(f"the ext4 feature {names} is not supported", source.name, CONVERT)
    if superblock.needs_recovery and not allow_unclean:
        raise UnsupportedError(
            "the journal of the file system needs replay (not unmounted)", source.name, UNCLEAN_REMEDY
        )


def _is_power(number: int, base: int) -> bool:
    while number > 1 and number % base == 0:
        number //= base
    return number == 1
