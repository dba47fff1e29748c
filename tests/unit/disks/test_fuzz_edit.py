"""Mutated images are edited within their partitions or refused, in bounded time and memory, and never anything else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

from disk_tools import BytesSource, inode_at, run, sparse
from disk_trees import materialise, owned
from mutations import KIB, fuzz
from tpu_image.disks import seal
from tpu_image.disks.archive import stored_extents
from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.ext4.filesystem import Ext4FileSystem
from tpu_image.disks.image_tree import ImageTree, open_tree
from tpu_image.disks.source import Section
from tpu_image.disks.tree_writer import free_ranges, write_nodes
from tpu_image.trees.base import Tree
from tpu_image.trees.memory import Directory, File, Node, Symlink

START = 64 * KIB
"""Where the root partition starts."""

FEATURES = {
    "extents": ["-O", "^metadata_csum,^has_journal"],
    "pointers": ["-t", "ext2"],
    "checksums": ["-O", "^has_journal"],
    "uninitialised groups": ["-O", "^metadata_csum,uninit_bg,^has_journal", "-g", "256"],
}

FILES: dict[str, Node] = {
    "/etc": Directory(),
    "/etc/os-release": File(b"ID=debian\n"),
    "/etc/secret": File(b"secret\n" * 900),
    "/etc/environment": File(b"A=b\n"),
    "/etc/link": Symlink("environment"),
    "/etc/long": Symlink("x/" * 60),
    "/many": Directory(),
    **{f"/many/a-name-that-fills-the-blocks-of-its-directory-{n}": File(b"") for n in range(40)},
    "/sbin": Directory(),
    "/sbin/init": File(b""),
    "/scattered": File(b"z" * 40 * KIB),
}

CHANGES: dict[str, Node | None] = {
    "/etc/environment": File(b"A=c\n" * 700),
    "/etc/link": Symlink("os-release"),
    "/etc/long": Symlink("short"),
    "/etc/new": Directory(0o750),
    "/etc/new/file": File(b"new", 0o600),
    "/etc/secret": None,
    "/many/a-name-that-fills-the-blocks-of-its-directory-3": None,
    **{f"/many/another-name-that-wants-a-block-of-its-own-{n}": File(b"1") for n in range(12)},
    "/scattered": File(b"y" * 30 * KIB),
}


class WatchedDisk(EditedDisk):
    """A disk that notes where it is written to."""

    def __init__(self, data: bytearray) -> None:
        super().__init__(BytesSource(data), seal.whole_gib(len(data)))
        self.writes: list[tuple[int, int]] = []

    def write_at(self, offset: int, data: bytes) -> None:
        self.writes.append((offset, offset + len(data)))
        super().write_at(offset, data)


def edit_disk(data: bytearray) -> None:
    """Do with a disk what a build does."""
    disk = WatchedDisk(data)
    seal.move_backup_gpt(disk)
    tree = open_tree(disk)
    disk.writes.clear()
    write_nodes(disk, tree, CHANGES, time=1)
    start, end = partition_of(tree)
    assert disk.writes
    assert all(start <= first and last <= end for first, last in disk.writes)
    disk.discard(free_ranges(disk, open_tree(disk)))
    for extent in stored_extents(disk)[:20]:
        disk.read_at(extent.offset, min(extent.length, 64 * KIB))


def grow_disk(data: bytearray) -> None:
    """Grow the root of a disk into one of a GiB."""
    disk = WatchedDisk(data)
    seal.move_backup_gpt(disk)
    seal.grow_root(disk)
    start, _ = partition_of(open_tree(disk))
    table = 128 * KIB  # the GPT's own copies
    assert all(first < table or start <= first for first, _ in disk.writes)
    for extent in stored_extents(disk)[:20]:
        disk.read_at(extent.offset, min(extent.length, 64 * KIB))


def partition_of(tree: ImageTree) -> tuple[int, int]:
    source = tree.root.volume.source
    assert isinstance(source, Section)
    return source.offset, source.offset + source.size


def disk_of(folder: Path, options: list[str]) -> bytearray:
    materialise({path: owned(node) for path, node in FILES.items()}, make(folder / "files"))
    root = sparse(folder / "root", 1024 * KIB)
    run("mkfs.ext4", "-q", "-F", "-b", "1024", "-N", "200", *options, "-d", folder / "files", root)
    path = sparse(folder / "disk", START + 1024 * KIB + 64 * KIB)
    run("sfdisk", "-q", path, text="label: gpt\nfirst-lba: 64\nstart=128, size=2048\n")
    data = bytearray(path.read_bytes())
    data[START : START + 1024 * KIB] = root.read_bytes()
    return data


def make(folder: Path) -> Path:
    folder.mkdir()
    return folder


def areas_of(data: bytearray) -> Iterator[tuple[int, int]]:
    """What an edit believes: superblock, descriptors, bitmaps, the inodes and blocks of what it changes."""
    disk = EditedDisk(BytesSource(data))
    tree = open_tree(disk)
    files: Tree = tree.root.tree
    filesystem = files.filesystem  # type: ignore[attr-defined]
    assert isinstance(filesystem, Ext4FileSystem)
    yield START + KIB, 264
    yield START + KIB, 120
    for _ in range(4):
        yield START + 2 * KIB, 20
    group = filesystem.group(0)
    for block in (group.block_bitmap, group.inode_bitmap):
        yield START + block * KIB, 16
        yield START + block * KIB, 128
    for path in ("/", "/etc", "/many", "/etc/secret", "/etc/environment", "/etc/long", "/scattered"):
        record = inode_at(filesystem, path)
        inode = START + filesystem.inode_offset(record.number)
        yield from ((inode, 40), (inode + 26, 10), (inode + 40, 60), (inode + 40, 60), (inode + 100, 28))
        if path in ("/", "/etc", "/many"):
            for part in filesystem.runs(record):
                yield START + part.physical * KIB, 200


@pytest.mark.slow
@pytest.mark.parametrize("name", FEATURES)
def test_file_systems(name: str, tmp_path: Path) -> None:
    data = disk_of(tmp_path, FEATURES[name])
    edit_disk(bytearray(data))
    fuzz(bytes(data), list(areas_of(data)), 500, edit_disk)


@pytest.mark.slow
@pytest.mark.parametrize("name", FEATURES)
def test_file_systems_that_grow(name: str, tmp_path: Path) -> None:
    data = disk_of(tmp_path, FEATURES[name])
    grow_disk(bytearray(data))
    filesystem = Ext4FileSystem(Section(EditedDisk(BytesSource(data)), START, 1024 * KIB))
    resize = START + filesystem.inode_offset(7)
    areas = [(START + KIB, 264), (START + KIB, 120), (START + 2 * KIB, 64), (resize, 128)]
    fuzz(bytes(data), areas, 100, grow_disk)


def test_partition_tables(tmp_path: Path) -> None:
    data = disk_of(tmp_path, FEATURES["extents"])
    size = len(data)

    def checksums(chance: object, mutated: bytearray) -> None:
        for header in (512, size - 512):
            at = int.from_bytes(mutated[header + 72 : header + 80], "little") * 512
            if at + 128 * 128 <= size:
                mutated[header + 88 : header + 92] = crc32(mutated[at : at + 128 * 128]).to_bytes(4, "little")
            mutated[header + 16 : header + 20] = bytes(4)
            mutated[header + 16 : header + 20] = crc32(mutated[header : header + 92]).to_bytes(4, "little")

    areas = [(446, 66), (512, 92), (512, 92), (1024, 128), (size - 512, 92), (size - 33 * 512, 128)]
    fuzz(bytes(data), areas, 400, edit_disk, checksums)
