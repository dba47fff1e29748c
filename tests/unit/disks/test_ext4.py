"""ext4 as mkfs and debugfs make it, in all its feature sets, reads as debugfs reads it."""

from __future__ import annotations

import os
import posixpath
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from disk_tools import BytesSource, edit, fill, inode_at, run, sparse, write_at
from tpu_image.disks.crc32c import crc32c
from tpu_image.disks.errors import DamagedError, DiskError, UnsupportedError
from tpu_image.disks.ext4.bitmaps import Bitmaps
from tpu_image.disks.ext4.filesystem import Ext4FileSystem
from tpu_image.disks.ext4.tree import Ext4Tree
from tpu_image.disks.raw import open_raw
from tpu_image.trees.base import (
    Entry,
    Kind,
    LinkLoopError,
    NotAFileError,
    NotFoundError,
    NotReadableError,
    TooLargeError,
)

LIMIT = 100_000_000

OPTIONS = {
    "Debian's": ["-b", "4096"],
    "1 KiB blocks": ["-b", "1024"],
    "2 KiB blocks": ["-b", "2048"],
    "ext2": ["-t", "ext2", "-b", "1024"],
    "ext3": ["-t", "ext3", "-b", "2048"],
    "ext3 4 KiB": ["-t", "ext3", "-b", "4096", "-I", "128"],
    "no checksums": ["-b", "4096", "-O", "^metadata_csum"],
    "old group checksums": ["-b", "1024", "-O", "^metadata_csum,uninit_bg"],
    "new features": ["-b", "1024", "-O", "orphan_file,metadata_csum_seed,large_dir"],
    "32 bit": ["-b", "4096", "-O", "^64bit"],
    "inline data": ["-b", "4096", "-O", "inline_data"],
    "inline data 1 KiB": ["-b", "1024", "-I", "512", "-O", "inline_data"],
    "meta groups": ["-b", "1024", "-O", "meta_bg,^resize_inode"],
    "meta groups 32 bit": ["-b", "1024", "-O", "meta_bg,^resize_inode,^64bit"],
    "no flexible groups": ["-b", "1024", "-O", "^flex_bg,^resize_inode"],
    "two backups": ["-b", "1024", "-O", "sparse_super2,^resize_inode"],
    "no sparse super": ["-b", "1024", "-O", "^sparse_super,^resize_inode"],
    "clusters": ["-b", "4096", "-O", "bigalloc", "-C", "16384"],
    "clusters 1 KiB": ["-b", "1024", "-O", "bigalloc", "-C", "16384"],
    "attributes in inodes": ["-b", "4096", "-I", "1024", "-O", "ea_inode"],
    "small inodes": ["-I", "128", "-b", "1024"],
    "encrypt and casefold unused": ["-O", "encrypt,casefold,verity,project,quota"],
    "no journal": ["-b", "4096", "-O", "^has_journal,^dir_index"],
    "few groups": ["-b", "1024", "-g", "1024", "-G", "4"],
}


def walk(tree: Ext4Tree, path: str = "/") -> Iterator[tuple[str, Entry]]:
    for name in tree.names(path):
        below = posixpath.join(path, name)
        entry = tree.lstat(below)
        assert entry is not None
        yield below, entry
        if entry.kind is Kind.DIRECTORY:
            yield from walk(tree, below)


def listing(image: Path, directories: list[str]) -> dict[str, tuple[int, int, int, int]]:
    """Mode, uid, gid and size of everything, as debugfs says."""
    commands = "".join(f'ls -p "{path}"\n' for path in directories)
    output = run("debugfs", "-f", "-", image, text=commands)
    found = {}
    directory = ""
    for line in output.split("\n"):
        command = re.fullmatch(r'debugfs: ls -p "(.*)"', line)
        if command:
            directory = command[1]
        elif line.startswith("/"):
            _, inode, mode, uid, gid, name, size = line.split("/", 6)
            if name not in (".", "..") and inode != "0":
                path = posixpath.join(directory, name)
                found[path] = (int(mode, 8), int(uid), int(gid), int(size.strip("/") or 0))
    return found


def type_bits(entry: Entry) -> int:
    kinds = {Kind.FILE: stat.S_IFREG, Kind.DIRECTORY: stat.S_IFDIR, Kind.SYMLINK: stat.S_IFLNK}
    kinds |= {Kind.FIFO: stat.S_IFIFO, Kind.CHARACTER_DEVICE: stat.S_IFCHR, Kind.BLOCK_DEVICE: stat.S_IFBLK}
    return kinds[entry.kind]


@pytest.fixture(scope="module", params=OPTIONS, ids=lambda name: name.replace(" ", "-"))
def image(request: pytest.FixtureRequest, content: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file system for each feature set, with owners, devices and attributes set by debugfs."""
    folder = tmp_path_factory.mktemp("ext4")
    (folder / "big").write_bytes(b"attribute" * 80)
    made = fill(folder / "image", content, *OPTIONS[request.param])
    edit(
        made,
        "sif /etc/os-release uid 100000",
        "sif /etc/os-release gid 70",
        "sif /etc/tiny mode 0106600",
        "cd /etc",
        "mknod null c 1 3",
        "mknod disk b 8 0",
        "mknod pipe p",
        "ea_set /etc/os-release security.selinux system_u:object_r:etc_t:s0",
        "ea_set /etc/os-release user.note short",
        f"ea_set -f {folder}/big /usr/bin/tool user.large",
        "ea_set /usr/bin/tool trusted.x y",
        "rm /few/1",
    )
    run("e2fsck", "-fyD", made, good=(0, 1))
    return made


@pytest.fixture(scope="module")
def tree(image: Path) -> Iterator[Ext4Tree]:
    with open_raw(str(image)) as source:
        yield Ext4Tree(Ext4FileSystem(source))


@pytest.mark.slow
def test_names_modes_owners_and_sizes_are_those_that_debugfs_lists(image: Path, tree: Ext4Tree) -> None:
    ours = dict(walk(tree))
    assert len(ours) > 720
    directories = ["/"] + [path for path, entry in ours.items() if entry.kind is Kind.DIRECTORY]
    theirs = listing(image, directories)
    assert set(ours) == set(theirs)
    for path, entry in ours.items():
        mode, uid, gid, size = theirs[path]
        assert (type_bits(entry) | entry.mode, entry.uid, entry.gid) == (mode, uid, gid), path
        if entry.kind is not Kind.DIRECTORY:
            assert entry.size == size, path


@pytest.mark.slow
def test_contents_and_links_are_those_that_went_in(content: Path, tree: Ext4Tree) -> None:
    for path, entry in walk(tree):
        original = content / path[1:]
        if path.startswith("/lost+found") or not os.path.lexists(original):
            assert path in ("/lost+found", "/etc/null", "/etc/disk", "/etc/pipe")
        elif entry.kind is Kind.SYMLINK:
            assert entry.target == os.readlink(original)
        elif entry.kind is Kind.FILE:
            assert tree.read_bytes(path, LIMIT) == original.read_bytes(), path


def test_extended_attributes_are_those_that_were_set(tree: Ext4Tree) -> None:
    attributes = tree.extended_attributes("/etc/os-release")
    assert attributes["security.selinux"].rstrip(b"\0") == b"system_u:object_r:etc_t:s0"
    assert attributes["user.note"] == b"short"
    tool = tree.extended_attributes("/usr/bin/tool")
    assert tool == {"user.large": b"attribute" * 80, "trusted.x": b"y"}
    assert tree.extended_attributes("/etc/empty") == {}


def test_free_blocks_are_those_that_dumpe2fs_lists(image: Path, tree: Ext4Tree) -> None:
    filesystem = tree.filesystem
    if "bigalloc" in filesystem.superblock.features:
        with pytest.raises(UnsupportedError, match="bigalloc"):
            Bitmaps(filesystem)
        return
    free = set()
    for offset, length in Bitmaps(filesystem).free_ranges():
        free |= set(range(offset // filesystem.block_size, (offset + length) // filesystem.block_size))
    assert free == numbers_listed(image, "Free blocks")


def test_free_inodes_are_those_that_dumpe2fs_lists(image: Path, tree: Ext4Tree) -> None:
    superblock = tree.filesystem.superblock
    if "bigalloc" in superblock.features:
        return
    bitmaps = Bitmaps(tree.filesystem)
    free = set()
    for group in range(superblock.groups):
        used = bitmaps.inode_bitmap(group)
        first = group * superblock.inodes_per_group + 1
        free |= {first + index for index in range(superblock.inodes_per_group) if not used >> index & 1}
    assert free == numbers_listed(image, "Free inodes")


def numbers_listed(image: Path, what: str) -> set[int]:
    numbers: set[int] = set()
    for line in run("dumpe2fs", image).splitlines():
        name, _, ranges = line.strip().partition(": ")
        if name == what and line.startswith("  "):
            for first, last in re.findall(r"(\d+)(?:-(\d+))?", ranges):
                numbers |= set(range(int(first), int(last or first) + 1))
    return numbers


def test_features_are_named_as_dumpe2fs_names_them(image: Path, tree: Ext4Tree) -> None:
    line = next(
        line for line in run("dumpe2fs", "-h", image).splitlines() if line.startswith("Filesystem features")
    )
    listed = set(line.partition(":")[2].split())
    assert set(tree.filesystem.superblock.features) == listed


# --- one plain file system -------------------------------------------------------------------------------------


@pytest.fixture
def plain(content: Path, tmp_path: Path) -> Path:
    return fill(tmp_path / "plain", content, "-b", "1024")


def open_ext4(path: Path, *, allow_unclean: bool = False) -> Ext4Tree:
    return Ext4Tree(Ext4FileSystem(open_raw(str(path)), allow_unclean=allow_unclean))


def test_paths_lead_where_a_mounted_file_system_leads(plain: Path) -> None:
    edit(plain, "cd /etc", "symlink loop /etc/loop", "symlink up ../../../etc/tiny")
    tree = open_ext4(plain)
    assert tree.read_bytes("/bin/../../etc/tiny") == b"in the inode"
    assert tree.read_bytes("/etc/up") == b"in the inode"
    assert tree.stat("/bin/tool") == tree.lstat("/usr/bin/tool")
    assert tree.lstat("/etc/tiny/below") is None
    assert tree.lstat("/nowhere/at/all") is None
    assert tree.names("/etc/tiny") == []
    assert tree.names("/nowhere") == []
    with pytest.raises(NotFoundError):
        tree.read_bytes("/nowhere")
    with pytest.raises(NotAFileError, match="is a directory"):
        tree.read_bytes("/etc")
    with pytest.raises(TooLargeError):
        tree.read_bytes("/usr/bin/tool", limit=1000)
    with pytest.raises(LinkLoopError):
        tree.read_bytes("/etc/loop")


def test_times_beyond_2038_and_before_1970_are_read(plain: Path) -> None:
    edit(plain, "sif /etc/tiny mtime @5000000000", "sif /etc/empty mtime @1234567890")
    tree = open_ext4(plain)
    for path, expected in (("/etc/tiny", 5_000_000_000), ("/etc/empty", 1_234_567_890)):
        assert inode_at(tree.filesystem, path).mtime == expected


def test_crc32c_agrees_with_the_vector_of_its_rfc() -> None:
    assert crc32c(0xFFFF_FFFF, bytes(32)) ^ 0xFFFF_FFFF == 0x8A9136AA
    assert crc32c(0xFFFF_FFFF, b"123456789") ^ 0xFFFF_FFFF == 0xE3069283


# --- what is refused -------------------------------------------------------------------------------------------


def test_a_journal_that_needs_replay_is_refused_unless_it_is_asked_for(plain: Path) -> None:
    edit(plain, "feature needs_recovery")
    with pytest.raises(UnsupportedError, match=r"journal.*needs replay.*e2fsck"):
        open_ext4(plain)
    tree = open_ext4(plain, allow_unclean=True)
    assert tree.filesystem.superblock.needs_recovery
    assert tree.read_bytes("/etc/tiny") == b"in the inode"


@pytest.mark.parametrize(
    ("feature", "message"),
    [
        ("journal_dev", "journal_dev"),
        ("FEATURE_I12", "dirdata"),
        ("FEATURE_I0", "compression"),
        ("FEATURE_I25", "unknown feature 0x2000000"),
    ],
)
def test_an_incompatible_feature_is_refused_by_name(plain: Path, feature: str, message: str) -> None:
    edit(plain, f"feature {feature}")
    with pytest.raises(UnsupportedError, match=f"ext4 feature {message} is not supported"):
        open_ext4(plain)


def test_features_of_single_files_are_refused_where_they_are_met(content: Path, tmp_path: Path) -> None:
    image = fill(tmp_path / "image", content, "-O", "encrypt,casefold,verity")
    edit(
        image,
        "sif /etc/os-release flags 0x80800",
        "sif /usr flags 0x40080000",
        "sif /etc/tiny flags 0x180000",
    )
    tree = open_ext4(image)
    with pytest.raises(NotReadableError, match="encrypt"):
        tree.read_bytes("/etc/os-release")
    with pytest.raises(NotReadableError, match="casefold"):
        tree.lstat("/usr/bin")
    assert tree.read_bytes("/etc/tiny") == b"in the inode"


def test_a_file_system_larger_than_its_partition_is_damage(plain: Path) -> None:
    with plain.open("r+b") as file:
        file.truncate(40 << 20)
    with pytest.raises(DamagedError, match="more than its partition"):
        open_ext4(plain)


def test_a_flipped_bit_is_caught_by_the_checksums(plain: Path) -> None:
    data = bytearray(plain.read_bytes())
    tree = Ext4Tree(Ext4FileSystem(BytesSource(data)))
    number = inode_at(tree.filesystem, "/etc/tiny").number
    superblock = tree.filesystem.superblock
    table = tree.filesystem.group((number - 1) // superblock.inodes_per_group).inode_table
    inode = table * 1024 + (number - 1) % superblock.inodes_per_group * superblock.inode_size
    bitmap = tree.filesystem.group(0).block_bitmap * 1024
    for offset, message in ((1024 + 130, "superblock"), (2048 + 4, "block group 0"), (inode + 4, "inode")):
        broken = bytearray(data)
        broken[offset] ^= 1
        with pytest.raises((DiskError, NotReadableError), match=f"checksum of (the )?{message}"):
            Ext4Tree(Ext4FileSystem(BytesSource(broken))).lstat("/etc/tiny")
    data[bitmap + 7] ^= 1
    with pytest.raises(DamagedError, match="checksum of the block bitmap"):
        list(Bitmaps(Ext4FileSystem(BytesSource(data))).free_ranges())


# --- hostile ---------------------------------------------------------------------------------------------------


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A file system without checksums, small enough to damage by hand."""
    (tmp_path / "in" / "a" / "b").mkdir(parents=True)
    (tmp_path / "in" / "file").write_bytes(b"content" * 1000)
    sparse(tmp_path / "in" / "scattered", 1 << 20, {index * 4096: b"x" for index in range(200)})
    return fill(tmp_path / "image", tmp_path / "in", "-b", "1024", "-O", "^metadata_csum", size=8 << 20)


def block_of(image: Path, name: str) -> int:
    """First block of a file, as debugfs says."""
    return int(run("debugfs", "-R", f"blocks {name}", image).split()[0])


def test_a_directory_inside_itself_is_refused(hostile: Path) -> None:
    top = re.search(r"Inode: (\d+)", run("debugfs", "-R", "stat /a", hostile))
    assert top
    edit(hostile, f"link <{top[1]}> /a/b/loop")
    with pytest.raises(NotReadableError, match="inside itself"):
        open_ext4(hostile).lstat("/a/b/loop/b")


def test_an_extent_tree_that_loops_is_refused(hostile: Path) -> None:
    extents = run("debugfs", "-R", "ex -n /scattered", hostile)
    index = int(extents.splitlines()[1].split()[-2])
    data = bytearray(hostile.read_bytes())
    header = bytes(data[index * 1024 : index * 1024 + 12])
    looping = (
        header[:2]
        + b"\x01\x00"
        + header[4:6]
        + b"\x01\x00"
        + header[8:]
        + bytes(4)
        + index.to_bytes(8, "little")
    )
    data[index * 1024 : index * 1024 + 24] = looping
    tree = Ext4Tree(Ext4FileSystem(BytesSource(data)))
    with pytest.raises(NotReadableError, match="extent tree is damaged"):
        tree.read_bytes("/scattered")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("sif /file size_hi 1", "larger than"),
        ("sif /file block[4] 0", "overlap or are out of order"),
        ("sif /file block[5] 0x7fffffff", "out of range"),
        ("sif /file block[0] 0", "extent block is damaged"),
        ("sif /file block[0] 0xfff0f30a", "extent block is damaged"),
    ],
)
def test_an_inode_that_lies_about_its_blocks_is_refused(hostile: Path, command: str, message: str) -> None:
    edit(hostile, command)
    with pytest.raises((NotReadableError, TooLargeError), match=message):
        open_ext4(hostile).read_bytes("/file")


@pytest.mark.parametrize(
    ("offset", "data", "message"),
    [
        (4, b"\x00\x00", "out of its block"),
        (4, b"\xff\xff", "out of its block"),
        (4, b"\x0d\x00", "out of its block"),
        (6, b"\xff", "impossible name"),
    ],
)
def test_a_directory_entry_that_lies_is_refused(
    hostile: Path, offset: int, data: bytes, message: str
) -> None:
    # The third entry is the first one that is neither "." nor "..".
    write_at(hostile, block_of(hostile, "/a") * 1024 + 24 + offset, data)
    with pytest.raises(NotReadableError, match=message):
        open_ext4(hostile).lstat("/a/b")


@pytest.mark.parametrize("name", [b"/", b"\0"])
def test_a_name_that_no_file_can_have_is_refused(hostile: Path, name: bytes) -> None:
    write_at(hostile, block_of(hostile, "/a") * 1024 + 24 + 8, name)
    with pytest.raises(NotReadableError, match="impossible name"):
        open_ext4(hostile).names("/a")


def test_an_inode_number_out_of_range_is_refused(hostile: Path) -> None:
    write_at(hostile, block_of(hostile, "/a") * 1024 + 24, b"\xff\xff\xff\xff")
    with pytest.raises(NotReadableError, match="inode 4294967295 is out of range"):
        open_ext4(hostile).lstat("/a/b")


def test_a_huge_directory_is_refused_before_it_is_read(hostile: Path) -> None:
    edit(hostile, "sif /a size 0xfffffc00")
    with pytest.raises(NotReadableError, match="more than"):
        open_ext4(hostile).names("/a")
