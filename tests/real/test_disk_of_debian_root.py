"""A disk made of a real Debian root holds, read where it lies, exactly what the root has."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from disk_tools import run, sparse
from tpu_image.disks.ext4.tree import Ext4Tree
from tpu_image.disks.image import open_image
from tpu_image.disks.image_tree import ImageTree, open_tree
from tpu_image.trees.base import Kind

pytestmark = pytest.mark.real

MIB = 1 << 20
SIZE = 3 << 30
START = 2048 * 512


@pytest.fixture(scope="module")
def image(unpacked_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root as a compressed qcow2 with a GPT."""
    folder = tmp_path_factory.mktemp("disk")
    disk = sparse(folder / "disk.raw", SIZE)
    run("sfdisk", "-q", disk, text="label: gpt\nstart=2048, type=4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709\n")
    run(
        "mkfs.ext4",
        "-q",
        "-d",
        unpacked_root,
        "-E",
        f"offset={START}",
        disk,
        f"{(SIZE - 2 * START) // 1024}k",
    )
    run("qemu-img", "convert", "-c", "-O", "qcow2", disk, folder / "image")
    disk.unlink()
    return folder / "image"


@pytest.fixture(scope="module")
def unpacked_root(unpack_root: object, tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert callable(unpack_root)
    root = unpack_root(tmp_path_factory.mktemp("root"))
    assert isinstance(root, Path)
    return root


def everything(tree: ImageTree, root: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Every path of the root with its status, the folders of the tree having been listed."""
    folders = ["/"]
    while folders:
        folder = folders.pop()
        names = sorted(os.listdir(root / folder[1:]))
        assert tree.names(folder) == sorted([*names, *(["lost+found"] if folder == "/" else [])]), folder
        for name in names:
            path = os.path.join(folder, name)
            status = os.lstat(root / path[1:])
            yield path, status
            if stat.S_ISDIR(status.st_mode) and path != "/dev":
                folders.append(path)


def test_every_file_has_its_content_mode_owner_and_attributes(image: Path, unpacked_root: Path) -> None:
    count = 0
    with open_image(image) as source:
        tree = open_tree(source)
        assert isinstance(tree.root.tree, Ext4Tree)
        for path, status in everything(tree, unpacked_root):
            entry = tree.root.tree.lstat_canonical(path)
            assert entry is not None, path
            assert (entry.mode, entry.uid, entry.gid) == (
                stat.S_IMODE(status.st_mode),
                status.st_uid,
                status.st_gid,
            )
            if entry.kind is Kind.SYMLINK:
                assert entry.target == os.readlink(unpacked_root / path[1:])
                continue
            if entry.kind is Kind.FILE:
                assert tree.read_bytes(path, 1 << 30) == (unpacked_root / path[1:]).read_bytes(), path
            attributes = tree.root.tree.extended_attributes(path)
            assert set(attributes) == set(os.listxattr(unpacked_root / path[1:], follow_symlinks=False)), path
            for name, value in attributes.items():
                if not name.startswith("system.posix_acl"):
                    assert value == os.getxattr(unpacked_root / path[1:], name, follow_symlinks=False)
            count += 1
    assert count > 10_000
