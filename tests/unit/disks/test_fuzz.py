"""Mutated images give errors of the two kinds, in bounded time and memory, and never anything else.

Every case follows from its seed. ``TPU_IMAGE_FUZZ_ROUNDS`` multiplies the rounds for a longer run by hand.
"""

from __future__ import annotations

import gzip
import posixpath
import random
from pathlib import Path
from zlib import crc32

import pytest

from disk_tools import BytesSource, edit, fill, inode_at, run, sparse
from mutations import KIB, fuzz
from tpu_image.disks.errors import DiskError
from tpu_image.disks.ext4.bitmaps import Bitmaps
from tpu_image.disks.ext4.filesystem import Ext4FileSystem
from tpu_image.disks.ext4.tree import Ext4Tree
from tpu_image.disks.fat import open_fat
from tpu_image.disks.filesystems import identify
from tpu_image.disks.image_tree import open_tree
from tpu_image.disks.partitions import partition_source, read_partition_table
from tpu_image.disks.qcow2 import Qcow2Source
from tpu_image.disks.qcow2_header import read_header
from tpu_image.disks.source import BlockSource
from tpu_image.disks.tar_disk import open_tar_disk
from tpu_image.trees.base import Kind, Tree, TreeError


def read_disk(source: BlockSource) -> None:
    """Read the parts of a disk at random and describe it."""
    for offset in range(0, min(source.size, 64 * KIB), 5000):
        source.read_at(offset, min(6000, source.size - offset))
    for index, _ in enumerate(source.extents()):
        if index > 1000:
            break


def read_tree(tree: Tree, path: str = "/", left: list[int] | None = None) -> None:
    """Walk a tree, going on where a path is refused."""
    left = [60] if left is None else left
    refused: TreeError | None = None
    for name in tree.names(path):
        left[0] -= 1
        if left[0] < 0:
            break
        below = posixpath.join(path, name)
        try:
            entry = tree.lstat(below)
            if entry is not None and entry.kind is Kind.DIRECTORY:
                read_tree(tree, below, left)
            elif entry is not None and entry.kind is Kind.FILE:
                tree.read_bytes(below, 1 << 20)
            if isinstance(tree, Ext4Tree):
                tree.extended_attributes(below)
        except TreeError as error:
            refused = error
    if refused is not None:
        raise refused


# --- containers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        "compat=0.10,cluster_size=512",
        "compat=1.1,cluster_size=4096",
        "extended_l2=on,cluster_size=16384",
        "compression_type=zstd",
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_qcow2(tmp_path: Path, options: str, compressed: bool) -> None:
    disk = sparse(
        tmp_path / "disk", 256 * KIB, {0: b"some text " * 3000, 100_000: random.Random(1).randbytes(9000)}
    )
    image = tmp_path / "image"
    run("qemu-img", "convert", *(["-c"] if compressed else []), "-O", "qcow2", "-o", options, disk, image)
    base = image.read_bytes()
    l1 = int.from_bytes(base[40:48], "big")
    l2 = int.from_bytes(base[l1 : l1 + 8], "big") & 0x00FF_FFFF_FFFF_FE00
    areas = [(0, 112), (0, 112), (l1, 32), (l2, 256), (l2, min(4096, len(base) - l2))]

    def read(data: bytearray) -> None:
        file = BytesSource(data)
        header = read_header(file)
        with Qcow2Source(file, header) as source:
            read_disk(source)

    fuzz(base, areas, 900, read)


@pytest.mark.parametrize("form", [["--format=oldgnu", "-S"], ["--format=pax", "-S"], ["--format=gnu"]])
def test_tar(tmp_path: Path, form: list[str]) -> None:
    disk = sparse(tmp_path / "disk.raw", 128 * KIB, {index * 16 * KIB: b"x" * 4096 for index in range(7)})
    run("tar", "-C", tmp_path, *form, "-cf", tmp_path / "image", disk.name)
    base = (tmp_path / "image").read_bytes()

    def checksum(chance: random.Random, data: bytearray) -> None:
        for at in (0, 1024):
            block = bytearray(data[at : at + 512])
            block[148:156] = b" " * 8
            data[at + 148 : at + 156] = b"%06o\0 " % sum(block)

    def read(data: bytearray) -> None:
        file = BytesSource(gzip.compress(bytes(data[: 64 * KIB]), 1))
        with open_tar_disk(file) as source:
            read_disk(source)

    fuzz(base, [(0, 600), (345, 167), (512, 512), (1024, 1024)], 700, read, checksum)


def test_gzip(tmp_path: Path) -> None:
    disk = sparse(tmp_path / "disk.raw", 64 * KIB, {0: random.Random(3).randbytes(20_000)})
    run("tar", "-C", tmp_path, "-czf", tmp_path / "image", disk.name)
    base = (tmp_path / "image").read_bytes()

    def read(data: bytearray) -> None:
        with open_tar_disk(BytesSource(data)) as source:
            read_disk(source)

    fuzz(base, [(0, 100), (0, len(base) - 8)], 700, read)


# --- partition tables ------------------------------------------------------------------------------------------


def read_partitions(data: bytearray) -> None:
    source = BytesSource(data)
    for partition in read_partition_table(source).partitions:
        identify(partition_source(source, partition))


def test_gpt(tmp_path: Path) -> None:
    size = 2048 * KIB
    path = sparse(tmp_path / "disk", size)
    run("sfdisk", "-q", path, text="label: gpt\nstart=100, size=100\nstart=300, size=200\nstart=1000\n")
    base = path.read_bytes()

    def checksums(chance: random.Random, data: bytearray) -> None:
        for header in (512, size - 512):
            at, count, length = (
                int.from_bytes(data[header + o : header + o + n], "little")
                for o, n in ((72, 8), (80, 4), (84, 4))
            )
            if count * length < size:
                data[header + 88 : header + 92] = crc32(data[at * 512 : at * 512 + count * length]).to_bytes(
                    4, "little"
                )
            data[header + 16 : header + 20] = bytes(4)
            data[header + 16 : header + 20] = crc32(data[header : header + 92]).to_bytes(4, "little")

    both = [(446, 66), (512, 92), (512, 92), (1024, 512), (size - 512, 92), (size - 33 * 512, 384)]
    fuzz(base, both, 2500, read_partitions, checksums)


def test_mbr(tmp_path: Path) -> None:
    path = sparse(tmp_path / "disk", 1024 * KIB)
    run(
        "sfdisk",
        "-q",
        path,
        text="label: dos\nstart=10, size=50\nstart=100, size=1900, type=5\nstart=200, size=50\nstart=300, size=50\n",
    )
    base = path.read_bytes()
    records = [at for at in range(0, len(base), 512) if base[at + 510 : at + 512] == b"\x55\xaa"]
    assert len(records) == 3
    fuzz(base, [(at + 446, 66) for at in records], 2500, read_partitions)


# --- file systems ----------------------------------------------------------------------------------------------

EXT4 = {
    "extents": ["-O", "^metadata_csum,^has_journal"],
    "pointers": ["-t", "ext2"],
    "inline": ["-O", "^metadata_csum,^has_journal,inline_data", "-I", "256"],
    "checksums": ["-O", "^has_journal"],
    "meta groups": ["-O", "^metadata_csum,^has_journal,meta_bg,^resize_inode", "-g", "256"],
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("fuzz")
    (top / "etc/a/b").mkdir(parents=True)
    for name in ("etc/os-release", "etc/a/one", "etc/a/b/two"):
        (top / name).write_text(name * 100)
    (top / "etc/tiny").write_text("tiny")
    (top / "short").symlink_to("etc/tiny")
    (top / "long").symlink_to("x" * 100)
    sparse(top / "scattered", 400 * KIB, {index * 4096: b"y" for index in range(100)})
    return top


def read_ext4(data: bytearray) -> None:
    source = BytesSource(data)
    identify(source)
    filesystem = Ext4FileSystem(source)
    refused: DiskError | None = None
    try:
        for index, _ in enumerate(Bitmaps(filesystem).free_ranges()):
            if index > 1000:
                break
    except DiskError as error:
        refused = error
    read_tree(Ext4Tree(filesystem))
    if refused is not None:
        raise refused


@pytest.mark.slow
@pytest.mark.parametrize("name", EXT4)
def test_ext4(files: Path, tmp_path: Path, name: str) -> None:
    path = fill(tmp_path / "image", files, "-b", "1024", *EXT4[name], size=1024 * KIB)
    edit(path, "ea_set /etc/tiny user.note value", "ea_set /etc/os-release security.selinux " + "label" * 60)
    base = path.read_bytes()
    filesystem = Ext4FileSystem(BytesSource(base))
    table = filesystem.group(0).inode_table * KIB
    size = filesystem.superblock.inode_size
    areas = [(KIB, 264), (KIB, 120), (2 * KIB, 64), (table + size, size)]
    for path_ in ("/etc", "/etc/a", "/etc/tiny", "/etc/os-release", "/scattered", "/short", "/long"):
        inode = inode_at(filesystem, path_)
        areas += [(table + (inode.number - 1) * size, size), (table + (inode.number - 1) * size + 40, 60)]
        if inode.kind is Kind.DIRECTORY:
            areas += [(run_.physical * KIB, 100) for run_ in filesystem.runs(inode)]
        if inode.attribute_block:
            areas.append((inode.attribute_block * KIB, 80))
        if path_ == "/scattered":
            index = int.from_bytes(
                inode.mapping[16:20] if name != "pointers" else inode.mapping[48:52], "little"
            )
            areas += [(index * KIB, 200), (index * KIB, 12)]
    fuzz(base, areas, 1600, read_ext4)


@pytest.mark.parametrize("width", ["12", "16", "32"])
def test_fat(files: Path, tmp_path: Path, width: str) -> None:
    path = sparse(
        tmp_path / "image", 34_000 * KIB if width == "32" else 5000 * KIB if width == "16" else 500 * KIB
    )
    run("mkfs.vfat", "-F", width, "-s", "1", path)
    run("mcopy", "-s", "-i", path, files / "etc", "::/")
    base = path.read_bytes()[: 2400 * KIB]
    tree = open_fat(BytesSource(base))
    geometry = tree._geometry
    folder = (
        geometry.data + ((tree._find("/etc") or pytest.fail("no /etc")).cluster - 2) * geometry.cluster_size
    )
    areas = [(0, 90), (11, 40), (geometry.table, 100), (geometry.root, 96), (folder, 256), (folder, 96)]

    def read(data: bytearray) -> None:
        source = BytesSource(data)
        identify(source)
        read_tree(open_fat(source))

    fuzz(base, areas, 700, read)


@pytest.mark.slow
def test_whole_disks(files: Path, tmp_path: Path) -> None:
    (files / "sbin").mkdir(exist_ok=True)
    (files / "sbin/init").touch()
    (files / "etc/fstab").write_text("LABEL=EFI /boot/efi vfat defaults 0 0\n")
    root = fill(tmp_path / "root", files, "-b", "1024", "-O", "^metadata_csum,^has_journal", size=1024 * KIB)
    efi = sparse(tmp_path / "efi", 512 * KIB)
    run("mkfs.vfat", "-n", "EFI", efi)
    path = sparse(tmp_path / "disk", 2048 * KIB)
    run("sfdisk", "-q", path, text="label: gpt\nfirst-lba: 64\nstart=64, size=1024\nstart=1100, size=2048\n")
    data = bytearray(path.read_bytes())
    data[64 * 512 : 64 * 512 + 512 * KIB] = efi.read_bytes()
    start = 1100 * 512
    data[start : start + 1024 * KIB] = root.read_bytes()
    areas = [(446, 66), (512, 92), (1024, 256), (64 * 512, 90), (start + KIB, 264), (start + 2 * KIB, 4096)]

    def read(mutated: bytearray) -> None:
        read_tree(open_tree(BytesSource(mutated)))

    fuzz(bytes(data), areas, 500, read)
