"""A file system that grew is one that e2fsck finds clean, and as large as resize2fs makes it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from disk_tools import run, sparse
from tpu_image.disks.edited import EditedDisk, EditedSection
from tpu_image.disks.errors import UnsupportedError
from tpu_image.disks.ext4.grow import grow
from tpu_image.disks.raw import RawSource

MIB = 1 << 20

FEATURE_SETS = {
    "as Debian 12 makes it": [],
    "as Ubuntu 24.04 makes it": ["-O", "metadata_csum_seed,orphan_file"],
    "descriptors with crc16": ["-O", "^metadata_csum,uninit_bg"],
    "no checksums": ["-O", "^metadata_csum,^uninit_bg"],
    "small blocks": ["-b", "1024"],
    "small blocks and descriptors": ["-b", "1024", "-O", "^64bit"],
    "32-byte descriptors": ["-O", "^64bit"],
    "groups on their own": ["-O", "^flex_bg"],
    "ext3": ["-t", "ext3"],
    "ext2": ["-t", "ext2", "-I", "128"],
    "ext2 with copies in all groups": ["-t", "ext2", "-O", "^sparse_super,^resize_inode", "-b", "1024"],
    "meta groups": ["-O", "meta_bg,^resize_inode"],
    "meta groups of small blocks": ["-O", "meta_bg,^resize_inode", "-b", "1024"],
    "two copies": ["-O", "sparse_super2"],
    "two copies of small blocks": ["-O", "sparse_super2", "-b", "1024"],
    "nothing kept for descriptors": ["-O", "^resize_inode"],
    "nothing kept for small descriptors": ["-O", "^resize_inode", "-b", "1024"],
    "little kept for descriptors": ["-b", "1024", "-E", "resize=300M"],
    "groups of other sizes": ["-b", "1024", "-g", "4096", "-N", "5000"],
    "many inodes": ["-b", "1024", "-i", "1024"],
    "no journal": ["-O", "^has_journal"],
}

LIKE_RESIZE2FS = FEATURE_SETS.keys() - {
    # resize2fs moves the last copy along, and gives all groups the longer table; both stay where they are here.
    "ext2 with copies in all groups",
    "two copies",
    "two copies of small blocks",
    "nothing kept for descriptors",
    "nothing kept for small descriptors",
    "little kept for descriptors",
}

COUNTS = re.compile(
    r"^(Inode count|Block count|Reserved block count|Free blocks|Free inodes|Reserved GDT blocks"
    r"|Filesystem features): +(.*)$",
    re.MULTILINE,
)


def make(folder: Path, options: list[str], size: int) -> Path:
    files = folder / "files"
    files.mkdir()
    (files / "text").write_text("some text\n" * 30_000)
    image = sparse(folder / "before", size)
    run("mkfs.ext4", "-q", "-F", *options, "-d", files, image)
    return image


def grown(image: Path, size: int) -> Path:
    """Grow into a disk of ``size`` bytes, which holds old data behind the file system."""
    disk = EditedDisk(RawSource(os.open(image, os.O_RDONLY), str(image)), size)
    grow(EditedSection(disk, 0, size, "part"))
    result = image.with_name("after")
    with disk.base, result.open("wb") as file:
        file.truncate(size)
        for extent in disk.extents():
            file.seek(extent.offset)
            if extent.kind.value != "zero":
                file.write(disk.read_at(extent.offset, extent.length))
    return result


def counts(image: Path) -> dict[str, str]:
    return dict(COUNTS.findall(run("dumpe2fs", "-h", image)))


def check_backups(image: Path, *, in_meta_groups: bool) -> None:
    """Every copy of the superblock that finds descriptors serves e2fsck in place of the first."""
    block_size = re.search(r"Block size: +(\d+)", run("dumpe2fs", "-h", image))
    # Once meta groups follow on a table, a copy among them does not lead to the table.
    pattern = (
        r"Backup superblock at (\d+)" if in_meta_groups else r"Backup superblock at (\d+), Group descriptors"
    )
    numbers = re.findall(pattern, run("dumpe2fs", image))
    assert block_size
    for number in numbers[:2] + numbers[-2:]:
        run("e2fsck", "-fn", "-b", number, "-B", block_size[1], image, good=(0, 4))


@pytest.mark.slow
@pytest.mark.parametrize("size", [40, 129, 700], ids="{} MiB".format)
@pytest.mark.parametrize("features", FEATURE_SETS)
def test_it_is_clean_and_holds_what_it_held(features: str, size: int, tmp_path: Path) -> None:
    before = make(tmp_path, FEATURE_SETS[features], 33 * MIB)
    after = grown(before, size * MIB)
    run("e2fsck", "-fn", after)
    check_backups(after, in_meta_groups=features.startswith("meta groups"))
    assert run("debugfs", "-R", "cat /text", after) == "some text\n" * 30_000
    if features in LIKE_RESIZE2FS:
        os.truncate(before, size * MIB)
        run("resize2fs", before)
        assert counts(after) == counts(before)


@pytest.fixture(scope="module")
def two_groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file system whose last group is not whole."""
    return make(tmp_path_factory.mktemp("two"), ["-b", "1024", "-N", "512"], 12 * MIB)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kib=st.integers(12 * 1024, 200 * 1024))
def test_any_size_will_do(two_groups: Path, kib: int) -> None:
    after = grown(two_groups, kib * 1024)
    run("e2fsck", "-fn", after)
    blocks = re.search(r"Block count: +(\d+)", run("dumpe2fs", "-h", after))
    assert blocks
    assert kib - 300 < int(blocks[1]) <= kib  # a last group too small for its metadata is left out


def test_it_can_grow_time_and_again(tmp_path: Path) -> None:
    image = make(tmp_path, ["-b", "1024", "-E", "resize=300M"], 12 * MIB)
    for size in (13, 50, 280, 290, 600, 1024):
        grown(image, size * MIB).replace(image)
        run("e2fsck", "-fn", image)


def test_a_growth_by_terabytes_changes_few_blocks(tmp_path: Path) -> None:
    image = make(tmp_path, ["-b", "4096"], 64 * MIB)
    disk = EditedDisk(RawSource(os.open(image, os.O_RDONLY), str(image)), 4 << 40)
    with disk.base:
        assert grow(EditedSection(disk, 0, disk.size, "part")) == disk.size
        assert disk.changed_bytes < 100 * MIB


@pytest.mark.parametrize("feature", ["bigalloc", "resize_inode without sparse_super"])
def test_what_is_not_handled_is_named(feature: str, tmp_path: Path) -> None:
    image = make(tmp_path, ["-O", "bigalloc"] if feature == "bigalloc" else [], 64 * MIB)
    if feature != "bigalloc":
        run("debugfs", "-w", "-R", "feature -sparse_super", image)
    with pytest.raises(UnsupportedError, match=feature):
        grown(image, 100 * MIB)


def test_a_file_system_that_was_not_unmounted_is_refused(tmp_path: Path) -> None:
    image = make(tmp_path, [], 64 * MIB)
    run("debugfs", "-w", "-R", "ssv state 0", image)
    with pytest.raises(UnsupportedError, match="not unmounted cleanly"):
        grown(image, 100 * MIB)
