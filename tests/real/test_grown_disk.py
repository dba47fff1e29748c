"""The kernel mounts a file system that grew, and fills it to the last block."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from disk_tools import run, sparse
from tpu_image.disks.edited import EditedDisk, EditedSection
from tpu_image.disks.ext4.grow import grow
from tpu_image.disks.raw import RawSource

pytestmark = pytest.mark.real

MIB = 1 << 20


@pytest.mark.parametrize(
    "options", [[], ["-b", "1024"], ["-O", "^resize_inode", "-b", "1024"], ["-t", "ext3"]], ids=str
)
def test_the_kernel_fills_a_file_system_that_grew(options: list[str], tmp_path: Path) -> None:
    image = sparse(tmp_path / "image", 60 * MIB)
    run("mkfs.ext4", "-q", "-F", *options, image)
    disk = EditedDisk(RawSource(os.open(image, os.O_RDONLY), str(image)), 500 * MIB)
    grow(EditedSection(disk, 0, disk.size, "part"))
    grown = sparse(tmp_path / "grown", disk.size)
    with disk.base, grown.open("r+b") as file:
        for offset in range(0, disk.size, MIB):
            file.seek(offset)
            file.write(disk.read_at(offset, MIB))
    place = tmp_path / "mounted"
    place.mkdir()
    run("mount", "-o", "loop", grown, place)
    try:
        for number in range(2000):
            (place / f"small-{number}").write_text(str(number))
        done = subprocess.run(
            ["dd", "if=/dev/zero", f"of={place}/large", "bs=1M"], capture_output=True, text=True
        )
        assert "No space left" in done.stderr
        assert (place / "large").stat().st_size > 350 * MIB
    finally:
        run("umount", place)
    run("e2fsck", "-fn", grown)
