"""FAT in its three widths reads as mtools reads it."""

from __future__ import annotations

import posixpath
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from disk_tools import BytesSource, run, sparse
from tpu_image.disks.errors import DamagedError
from tpu_image.disks.fat import FatTree, open_fat
from tpu_image.disks.raw import open_raw
from tpu_image.trees.base import Kind, NotAFileError, NotFoundError, NotReadableError, TooLargeError

MIB = 1 << 20

WIDTHS = {
    "FAT12": (["-F", "12"], 8 * MIB),
    "FAT16": (["-F", "16"], 64 * MIB),
    "FAT16 large clusters": (["-F", "16", "-s", "64"], 256 * MIB),
    "FAT32": (["-F", "32"], 300 * MIB),
    "FAT32 4 KiB sectors": (["-F", "32", "-S", "4096", "-s", "1"], 300 * MIB),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("fat")
    (top / "EFI/debian").mkdir(parents=True)
    (top / "EFI/BOOT").mkdir()
    (top / "EFI/debian/grub.cfg").write_text("configfile $prefix/grub.cfg\n")
    (top / "EFI/debian/a rather long name, with blanks.Conf").write_text("long")
    (top / "EFI/debian/gr\u00fc\u00dfe \u65e5\u672c").write_text("unicode")
    (top / "EFI/BOOT/BOOTX64.EFI").write_bytes(random.Random(2).randbytes(700_001))
    (top / "EFI/BOOT/empty").touch()
    (top / "lower.txt").write_text("lower")
    (top / "EFI/many").mkdir()
    for index in range(150):
        (top / f"EFI/many/file number {index}").write_text(str(index))
    return top


@pytest.fixture(scope="module", params=WIDTHS)
def partition(request: pytest.FixtureRequest, files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    options, size = WIDTHS[request.param]
    path = sparse(tmp_path_factory.mktemp("image") / "image", size)
    run("mkfs.vfat", *options, "-n", "EFI", path)
    run("mcopy", "-s", "-Q", "-i", path, files / "EFI", files / "lower.txt", "::/")
    run("mdel", "-i", path, "::/EFI/many/file number 7")
    return path


@pytest.fixture(scope="module")
def tree(partition: Path) -> Iterator[FatTree]:
    with open_raw(str(partition)) as source:
        yield open_fat(source)


def walk(tree: FatTree, path: str = "/") -> Iterator[str]:
    for name in tree.names(path):
        below = posixpath.join(path, name)
        yield below
        if tree.is_directory(below):
            yield from walk(tree, below)


def test_names_are_those_that_mtools_lists(partition: Path, tree: FatTree) -> None:
    listed = run("mdir", "-/", "-b", "-i", partition, "::/").splitlines()
    assert {line.removeprefix("::").rstrip("/") for line in listed} == set(walk(tree))


def test_contents_are_those_that_went_in(files: Path, tree: FatTree) -> None:
    paths = [path for path in walk(tree) if tree.is_file(path)]
    assert len(paths) == 155
    for path in paths:
        assert tree.read_bytes(path) == (files / path[1:]).read_bytes()
        entry = tree.lstat(path)
        assert entry is not None
        assert (entry.kind, entry.size) == (Kind.FILE, (files / path[1:]).stat().st_size)


def test_names_are_found_whatever_their_case(tree: FatTree) -> None:
    assert tree.read_text("/efi/DEBIAN/GRUB.CFG") == tree.read_text("/EFI/debian/grub.cfg")


def test_what_is_no_file_is_not_read(tree: FatTree) -> None:
    with pytest.raises(NotAFileError):
        tree.read_bytes("/EFI")
    with pytest.raises(NotFoundError):
        tree.read_bytes("/EFI/none")
    with pytest.raises(TooLargeError):
        tree.read_bytes("/EFI/BOOT/BOOTX64.EFI", 1000)
    assert tree.lstat("/lower.txt/below") is None
    assert tree.names("/lower.txt") == []


def test_a_boot_sector_that_is_none_is_damage() -> None:
    with pytest.raises(DamagedError, match="boot sector"):
        open_fat(BytesSource(bytes(4096)))


def small(files: Path, tmp_path: Path) -> bytearray:
    path = sparse(tmp_path / "image", 4 * MIB)
    run("mkfs.vfat", "-F", "16", "-s", "1", path)
    run("mcopy", "-s", "-i", path, files / "EFI", "::/")
    return bytearray(path.read_bytes())


def test_chains_of_clusters_that_end_early_or_nowhere_are_refused(files: Path, tmp_path: Path) -> None:
    data = small(files, tmp_path)
    table = int.from_bytes(data[14:16], "little") * 512
    for entry, message in ((b"\xff\xff", "shorter than its size"), (b"\xf0\xfe", "out of range")):
        data[table + 4 : table + 20_000] = entry * 9998
        with pytest.raises(NotReadableError, match=message):
            open_fat(BytesSource(data)).read_bytes("/EFI/BOOT/BOOTX64.EFI")


def test_a_directory_whose_chain_loops_ends(files: Path, tmp_path: Path) -> None:
    data = small(files, tmp_path)
    tree = open_fat(BytesSource(data))
    table = tree._geometry.table
    cluster = tree._children("/", tree._find("/EFI") or pytest.fail("no /EFI"))["many"].cluster
    data[table + cluster * 2 : table + cluster * 2 + 2] = cluster.to_bytes(2, "little")
    assert len(open_fat(BytesSource(data)).names("/EFI/many")) < 20
