"""Edits of a file system that was never mounted, judged by e2fsprogs."""

from __future__ import annotations

import os
import random
import re
import subprocess
from pathlib import Path

import pytest

from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.errors import UnsupportedError
from tpu_image.disks.ext4.editor import Ext4Editor
from tpu_image.disks.raw import RawSource
from tpu_image.trees.memory import Directory, File, Node, Symlink

MIB = 1 << 20

FEATURE_SETS = {
    "as Debian 12 makes it": ["-t", "ext4"],
    "as Ubuntu 24.04 makes it": ["-t", "ext4", "-O", "metadata_csum_seed,orphan_file"],
    "without checksums": ["-t", "ext4", "-O", "^metadata_csum,uninit_bg"],
    "small blocks": ["-t", "ext4", "-b", "1024"],
    "ext3": ["-t", "ext3"],
    "ext2 with small blocks and inodes": ["-t", "ext2", "-b", "1024", "-I", "128"],
    "meta block groups": ["-t", "ext4", "-O", "meta_bg,^resize_inode"],
    "without 64 bit numbers": ["-t", "ext4", "-O", "^64bit"],
}


def make(folder: Path, options: list[str], *, names: int = 30, size: int = 64 * MIB) -> Path:
    """A filled file system: a long directory, a nested one, links, a file in many pieces."""
    files = folder / "files"
    (files / "etc/deep/er").mkdir(parents=True)
    (files / "many").mkdir()
    for number in range(names):
        (files / "many" / f"a-file-with-a-rather-long-name-{number:05}").write_text(str(number))
    (files / "etc/grub").write_text("GRUB_TIMEOUT=5\n" * 300)
    os.link(files / "etc/grub", files / "etc/second-name")
    (files / "etc/environment").write_text("A=b\n")
    (files / "etc/large-before").write_bytes(random.Random(3).randbytes(300_000))
    os.symlink("grub", files / "etc/link")
    os.symlink("y/" * 60 + "end", files / "etc/long-link-before")
    image = folder / "image"
    with image.open("wb") as file:
        file.truncate(size)
    command: list[str | Path] = ["mke2fs", "-q", "-F", *options, "-d", files, image]
    subprocess.run(command, check=True, capture_output=True)
    return image


def edit(image: Path, changes: dict[str, Node | None]) -> Path:
    """Lay changes over an image and write the result beside it."""
    source = RawSource(os.open(image, os.O_RDONLY), str(image))
    disk = EditedDisk(source)
    with source:
        editor = Ext4Editor(disk, time=1_700_000_000)
        for path, node in changes.items():
            editor.put(path, node)
        editor.flush()
        result = image.with_name("edited")
        with result.open("wb") as file:
            for offset in range(0, disk.size, MIB):
                data = disk.read_at(offset, min(MIB, disk.size - offset))
                if any(data):
                    file.seek(offset)
                    file.write(data)
            file.truncate(disk.size)
    return result


def assert_clean(image: Path) -> None:
    done = subprocess.run(["e2fsck", "-fn", image], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def debugfs(image: Path, request: str) -> bytes:
    done = subprocess.run(["debugfs", "-R", request, image], capture_output=True, check=True)
    return done.stdout


def assert_holds(image: Path, changes: dict[str, Node | None]) -> None:
    for path, node in changes.items():
        status = debugfs(image, f'stat "{path}"').decode()
        if node is None:
            assert "Inode:" not in status, path
            continue
        assert f"User: {node.uid:5}   Group: {node.gid:5}" in status
        if isinstance(node, Symlink):
            assert "Type: symlink" in status
            if len(node.target) < 60:
                assert f'Fast link dest: "{node.target}"' in status
            else:
                assert debugfs(image, f'cat "{path}"').decode() == node.target
            continue
        assert re.search(rf"Mode: +0?{node.mode:04o} ", status), status
        if isinstance(node, File):
            assert debugfs(image, f'cat "{path}"') == node.content


CHANGES: dict[str, Node | None] = {
    "/etc/new": File(b"hello\n", 0o640, 7, 100_000),
    "/etc/empty": File(b""),
    "/etc/large": File(random.Random(1).randbytes(700_001), 0o4755),
    "/etc/grub": File(b"GRUB_TIMEOUT=0\n", 0o600, 1, 2),
    "/etc/environment": File(b"A=b\nC=d\n" * 3000, 0o644),
    "/etc/large-before": File(b"small now\n"),
    "/etc/link": Symlink("new"),
    "/etc/long-link-before": Symlink("short"),
    "/etc/long-link": Symlink("x/" * 60 + "end"),
    "/var": Directory(0o755),
    "/var/scripts": Directory(0o2750, 0, 50),
    "/var/scripts/run": File(b"#!/bin/sh\n", 0o755),
    "/many/a-file-with-a-rather-long-name-00003": None,
    "/etc/deep/er/file": File(b"deep"),
}


@pytest.mark.slow
@pytest.mark.parametrize("features", FEATURE_SETS)
def test_every_kind_of_change_leaves_a_clean_file_system(features: str, tmp_path: Path) -> None:
    image = make(tmp_path, FEATURE_SETS[features])
    before = image.read_bytes()
    edited = edit(image, CHANGES)
    assert_clean(edited)
    assert_holds(edited, CHANGES)
    assert debugfs(edited, "cat /etc/second-name") == b"GRUB_TIMEOUT=5\n" * 300, (
        "the other name was changed too"
    )
    assert image.read_bytes() == before


@pytest.mark.parametrize("features", ["as Debian 12 makes it", "small blocks", "without checksums"])
def test_an_indexed_directory_takes_and_loses_names(features: str, tmp_path: Path) -> None:
    image = make(tmp_path, FEATURE_SETS[features], names=2000)
    subprocess.run(["e2fsck", "-fyD", image], capture_output=True, check=False)
    assert b"0x1000" in debugfs(image, "stat /many") or b"0x81000" in debugfs(image, "stat /many")
    changes: dict[str, Node | None] = {f"/many/new-{n}": File(str(n).encode()) for n in range(300)}
    changes["/many/a-file-with-a-rather-long-name-01999"] = None
    edited = edit(image, changes)
    assert_clean(edited)
    assert_holds(edited, dict(list(changes.items())[-3:]))
    assert len(debugfs(edited, "ls /many").split()) > 4000


def test_a_fragmented_disk_gives_files_in_many_pieces(tmp_path: Path) -> None:
    image = make(tmp_path, ["-t", "ext4", "-b", "1024"], size=16 * MIB)
    script = tmp_path / "fill"
    (tmp_path / "block").write_bytes(b"x" * 1024)
    lines = [f"write {tmp_path}/block f{n}" for n in range(3000)] + [f"rm f{n}" for n in range(0, 3000, 2)]
    script.write_text("\n".join(lines))
    subprocess.run(["debugfs", "-w", "-f", script, image], capture_output=True, check=True)
    subprocess.run(["e2fsck", "-fy", image], capture_output=True, check=False)
    big = File(random.Random(2).randbytes(300 * 1024))
    edited = edit(image, {"/big": big})
    assert_clean(edited)
    assert debugfs(edited, "cat /big") == big.content


def test_a_full_disk_is_said_to_be_full(tmp_path: Path) -> None:
    image = make(tmp_path, ["-t", "ext4"], size=8 * MIB)
    with pytest.raises(UnsupportedError, match="no room"):
        edit(image, {"/big": File(bytes(16 * MIB))})


@pytest.mark.parametrize("feature", ["quota", "bigalloc"])
def test_a_feature_that_editing_does_not_keep_right_is_named(feature: str, tmp_path: Path) -> None:
    image = make(tmp_path, ["-t", "ext4", "-O", feature])
    with pytest.raises(UnsupportedError, match=feature):
        edit(image, {"/new": File(b"")})


def test_a_directory_with_its_content_in_the_inode_is_named(tmp_path: Path) -> None:
    image = make(tmp_path, ["-t", "ext4", "-O", "inline_data"])
    with pytest.raises(UnsupportedError, match="inline_data"):
        edit(image, {"/etc/deep/er/new": File(b"")})


def test_groups_that_were_never_used_are_taken_into_use(tmp_path: Path) -> None:
    image = make(tmp_path, ["-t", "ext4", "-b", "1024"], size=96 * MIB)
    edited = edit(image, {f"/big-{n}": File(random.Random(n).randbytes(8 * MIB)) for n in range(8)})
    assert_clean(edited)
