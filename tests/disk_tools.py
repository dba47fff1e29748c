"""The real tools that the disks are made and judged with, and disks held in memory."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tpu_image.disks.ext4.filesystem import Ext4FileSystem
from tpu_image.disks.ext4.inode import ROOT_INODE, Inode
from tpu_image.disks.source import BlockSource, Extent, ExtentKind

PACKAGES = {
    "blkid": "util-linux",
    "btrfs": "btrfs-progs",
    "bsdtar": "libarchive-tools",
    "cryptsetup": "cryptsetup-bin",
    "debugfs": "e2fsprogs",
    "dumpe2fs": "e2fsprogs",
    "e2fsck": "e2fsprogs",
    "fdisk": "fdisk",
    "mcopy": "mtools",
    "mdel": "mtools",
    "mdir": "mtools",
    "mkfs.btrfs": "btrfs-progs",
    "mkfs.erofs": "erofs-utils",
    "mkfs.exfat": "exfatprogs",
    "mkfs.ext4": "e2fsprogs",
    "mkfs.f2fs": "f2fs-tools",
    "mkfs.ntfs": "ntfs-3g",
    "mkfs.vfat": "dosfstools",
    "mkfs.xfs": "xfsprogs",
    "mksquashfs": "squashfs-tools",
    "mkswap": "util-linux",
    "mmd": "mtools",
    "mtype": "mtools",
    "qemu-img": "qemu-utils",
    "qemu-io": "qemu-utils",
    "sfdisk": "fdisk",
    "sgdisk": "gdisk",
    "tar": "tar",
    "tune2fs": "e2fsprogs",
    "xorriso": "xorriso",
}
"""Debian packages by the tools they bring."""

ENVIRONMENT = {**os.environ, "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin", "LC_ALL": "C.UTF-8"}


def run(tool: str, *arguments: object, text: str = "", good: tuple[int, ...] = (0,)) -> str:
    """Run a tool, giving its output; a missing one fails the test with the package to install."""
    command = [tool, *map(str, arguments)]
    try:
        done = subprocess.run(command, input=text.encode(), capture_output=True, env=ENVIRONMENT)
    except FileNotFoundError:
        pytest.fail(f"{tool} is not installed: apt-get install {PACKAGES.get(tool, tool)}")
    assert done.returncode in good, f"{command}: {done.stdout.decode(errors='replace')}{done.stderr.decode()}"
    return done.stdout.decode("utf-8", "surrogateescape")


def sparse(path: Path, size: int, parts: dict[int, bytes] | None = None) -> Path:
    """Make a sparse file with some bytes in it."""
    with path.open("wb") as file:
        file.truncate(size)
        for offset, data in (parts or {}).items():
            file.seek(offset)
            file.write(data)
    return path


def write_at(path: Path, offset: int, data: bytes) -> None:
    """Overwrite bytes of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def fill(image: Path, content: Path, *options: object, size: int = 72 << 20) -> Path:
    """Make an ext file system that holds a folder."""
    sparse(image, size)
    run("mkfs.ext4", "-q", "-F", "-E", "root_owner=0:0", "-d", content, *options, image)
    return image


def edit(image: Path, *commands: str) -> None:
    """Change a file system with debugfs."""
    run("debugfs", "-w", "-f", "-", image, text="\n".join(commands) + "\n")


class BytesSource(BlockSource):
    """A disk held in memory."""

    def __init__(self, data: bytes | bytearray) -> None:
        super().__init__("memory", len(data), "raw")
        self.data = data

    def _read(self, offset: int, length: int) -> bytes:
        return bytes(self.data[offset : offset + length])

    def _extents(self, start: int, end: int) -> Iterator[Extent]:
        yield Extent(start, end - start, ExtentKind.DATA)


def whole(source: BlockSource, piece: int = 1 << 20) -> bytes:
    """Read all of a disk."""
    return b"".join(source.read_at(at, min(piece, source.size - at)) for at in range(0, source.size, piece))


def check_extents(source: BlockSource, data: bytes) -> None:
    """The extents cover the disk in order, alternate in kind, and those called zero are zero."""
    at = 0
    last = None
    for extent in source.extents():
        assert extent.offset == at
        assert extent.length > 0
        assert extent.kind is not last
        if extent.kind is ExtentKind.ZERO:
            assert not any(data[extent.offset : extent.end])
        at, last = extent.end, extent.kind
    assert at == source.size


def inode_at(filesystem: Ext4FileSystem, path: str) -> Inode:
    """The inode of what is at a path that holds no link."""
    inode = filesystem.inode(ROOT_INODE)
    for name in path.split("/"):
        if name:
            inode = filesystem.inode(filesystem.directory(inode)[name])
    return inode
