"""The feature bits of an ext4 superblock, and which of them reading understands."""

from __future__ import annotations

COMPATIBLE_RESIZE_INODE = 0x10
COMPATIBLE_SPARSE_SUPER2 = 0x200

INCOMPATIBLE_RECOVER = 0x4
INCOMPATIBLE_META_BG = 0x10
INCOMPATIBLE_64BIT = 0x80
INCOMPATIBLE_CSUM_SEED = 0x2000
INCOMPATIBLE_LARGE_DIRECTORY = 0x4000

READ_ONLY_SPARSE_SUPER = 0x1
READ_ONLY_GDT_CHECKSUM = 0x10
READ_ONLY_BIGALLOC = 0x200
READ_ONLY_METADATA_CHECKSUM = 0x400
READ_ONLY_ORPHAN_PRESENT = 0x10000

COMPATIBLE_NAMES = {
    0x1: "dir_prealloc",
    0x2: "imagic_inodes",
    0x4: "has_journal",
    0x8: "ext_attr",
    0x10: "resize_inode",
    0x20: "dir_index",
    0x200: "sparse_super2",
    0x400: "fast_commit",
    0x800: "stable_inodes",
    0x1000: "orphan_file",
}
INCOMPATIBLE_NAMES = {
    0x1: "compression",
    0x2: "filetype",
    0x4: "needs_recovery",
    0x8: "journal_dev",
    0x10: "meta_bg",
    0x40: "extent",
    0x80: "64bit",
    0x100: "mmp",
    0x200: "flex_bg",
    0x400: "ea_inode",
    0x1000: "dirdata",
    0x2000: "metadata_csum_seed",
    0x4000: "large_dir",
    0x8000: "inline_data",
    0x10000: "encrypt",
    0x20000: "casefold",
}
READ_ONLY_NAMES = {
    0x1: "sparse_super",
    0x2: "large_file",
    0x8: "huge_file",
    0x10: "uninit_bg",
    0x20: "dir_nlink",
    0x40: "extra_isize",
    0x80: "snapshot",
    0x100: "quota",
    0x200: "bigalloc",
    0x400: "metadata_csum",
    0x800: "replica",
    0x1000: "read-only",
    0x2000: "project",
    0x4000: "shared_blocks",
    0x8000: "verity",
    0x10000: "orphan_present",
}
"""Names of the feature bits as tune2fs(8) and dumpe2fs(8) print them."""

INCOMPATIBLE_READABLE = sum(INCOMPATIBLE_NAMES) & ~(0x1 | 0x8 | 0x1000)
"""All but compression, journal_dev and dirdata; some of them are judged where a file uses them."""


def feature_names(bits: int, names: dict[int, str]) -> tuple[str, ...]:
    """Name the bits that are set, in order."""
    return tuple(
        names.get(1 << bit, f"unknown feature {1 << bit:#x}") for bit in range(32) if bits >> bit & 1
    )
