"""A file system copied while the kernel writes to it is read as a mount would leave it."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path
from typing import IO

import pytest

from disk_tools import run, sparse, whole
from tpu_image.disks.edited import EditedDisk, EditedSection
from tpu_image.disks.ext4.replay import replay
from tpu_image.disks.raw import RawSource

pytestmark = pytest.mark.real

MIB = 1 << 20

OPTIONS = {
    "as Debian 12 makes it": [],
    "small blocks": ["-b", "1024"],
    "orphan file": ["-O", "orphan_file"],
    "small inodes": ["-b", "1024", "-I", "128"],
    "ext3": ["-t", "ext3"],
}


def crashed(folder: Path, options: list[str]) -> Path:
    """Copy an image while it is mounted, with files that are open and deleted, and one being filled."""
    image = sparse(folder / "image", 96 * MIB)
    run("mkfs.ext4", "-q", "-F", "-J", "size=8", *options, image)
    place = folder / "mounted"
    place.mkdir()
    run("mount", "-o", "loop", image, place)
    held: list[IO[bytes]] = []
    try:
        for number in range(300):
            path = place / f"directory-{number % 7}" / f"file-{number}"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(os.urandom(100 + 97 * number))
            if number % 3 == 0:
                path.with_suffix(".old").write_text("gone\n" * 500)
        os.sync()
        for number in range(0, 300, 10):
            path = place / f"directory-{number % 7}" / f"file-{number}"
            held.append(path.open("rb"))
            os.setxattr(path, "user.long", b"v" * 300)
            path.unlink()
        for path in place.glob("*/*.old"):
            path.unlink()
        reserved = (place / "reserved").open("wb")
        held.append(reserved)
        reserved.write(b"x" * 10_000)
        subprocess.run(["fallocate", "-n", "-l", "3M", place / "reserved"], check="-t" not in options)
        os.fsync(reserved.fileno())
        (place / "reserved").unlink()
        (place / "kept").write_text("kept\n" * 3000)
        for path in (place, place / "kept", place / "directory-1"):
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
        time.sleep(0.2)
        copy = folder / "crashed"
        copy.write_bytes(image.read_bytes())
    finally:
        for file in held:
            file.close()
        run("umount", place)
    assert "needs_recovery" in run("dumpe2fs", "-h", copy)
    return copy


def listing(image: Path, folder: Path) -> dict[str, bytes]:
    """Every file of an image and its content."""
    out = folder / f"{image.name}-files"
    out.mkdir()
    run("debugfs", "-R", f"rdump / {out}", image)
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", OPTIONS)
def test_a_crashed_file_system_is_clean_after_our_replay(name: str, tmp_path: Path) -> None:
    image = crashed(tmp_path, OPTIONS[name])
    disk = EditedDisk(RawSource(os.open(image, os.O_RDONLY), str(image)))
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    with disk.base:
        assert replay(EditedSection(disk, 0, disk.size, "part")) > 0
        ours.write_bytes(whole(disk))
    run("e2fsck", "-fn", ours)
    theirs.write_bytes(image.read_bytes())
    run("e2fsck", "-fy", theirs, good=(0, 1))
    assert listing(ours, tmp_path) == listing(theirs, tmp_path)
    counts = [
        re.findall(r"^Free (?:blocks|inodes): +\d+", run("dumpe2fs", "-h", path), re.MULTILINE)
        for path in (ours, theirs)
    ]
    assert counts[0] == counts[1]
