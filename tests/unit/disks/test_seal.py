"""A grown disk has its GPT where firmware looks for it; sgdisk is the judge."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from tpu_image.disks import archive, seal
from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.errors import DamagedError, UnsupportedError
from tpu_image.disks.partitions import read_partition_table
from tpu_image.disks.raw import RawSource

MIB = 1 << 20


def make(path: Path, *, behind: bool = False) -> Path:
    """A disk of 300 MiB with a BIOS boot partition, an ESP and a root at its end."""
    with path.open("wb") as file:
        file.truncate(300 * MIB)
    partitions = ["-n14:0:+4M", "-t14:ef02", "-n15:0:+50M", "-t15:ef00"]
    partitions += ["-n1:0:+100M", "-n2:0:0"] if behind else ["-n1:0:0"]
    subprocess.run(["sgdisk", *partitions, path], check=True, capture_output=True)
    return path


def open_edited(path: Path, size: int) -> EditedDisk:
    return EditedDisk(RawSource(os.open(path, os.O_RDONLY), str(path)), size)


def write_out(disk: EditedDisk, path: Path) -> Path:
    with path.open("wb") as file:
        file.truncate(disk.size)
        for extent in archive.stored_extents(disk):
            file.seek(extent.offset)
            file.write(disk.read_at(extent.offset, extent.length))
    return path


def verify(path: Path) -> str:
    done = subprocess.run(["sgdisk", "--verify", path], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def damage(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xff" * 512)


@pytest.mark.parametrize("damaged", ["neither", "primary", "backup"])
def test_the_backup_moves_to_the_end_of_a_grown_disk(damaged: str, tmp_path: Path) -> None:
    path = make(tmp_path / "disk")
    if damaged != "neither":
        damage(path, 512 if damaged == "primary" else 300 * MIB - 512)
    disk = open_edited(path, seal.whole_gib(300 * MIB))
    assert disk.size == 1 << 30
    assert seal.move_backup_gpt(disk)
    out = write_out(disk, tmp_path / "out")
    assert "No problems found" in verify(out)
    assert read_partition_table(disk).problems == ()


def test_a_disk_whose_gpt_is_right_is_left_alone(tmp_path: Path) -> None:
    disk = open_edited(make(tmp_path / "disk"), 300 * MIB)
    assert not seal.move_backup_gpt(disk)
    assert disk.changed_bytes == 0


def test_a_gpt_without_a_sound_copy_is_refused(tmp_path: Path) -> None:
    path = make(tmp_path / "disk")
    damage(path, 512)
    damage(path, 300 * MIB - 512)
    with pytest.raises(DamagedError, match="both copies"):
        seal.move_backup_gpt(open_edited(path, 1 << 30))


def test_the_last_partition_grows_into_the_new_room(tmp_path: Path) -> None:
    disk = open_edited(make(tmp_path / "disk"), 1 << 30)
    seal.move_backup_gpt(disk)
    table = read_partition_table(disk)
    root = next(p for p in table.partitions if p.number == 1)
    size = seal.grow_partition(disk, table, root)
    assert size > (1 << 30) - 100 * MIB
    assert "No problems found" in verify(write_out(disk, tmp_path / "out"))


def test_a_partition_with_another_behind_it_is_not_grown(tmp_path: Path) -> None:
    disk = open_edited(make(tmp_path / "disk", behind=True), 1 << 30)
    seal.move_backup_gpt(disk)
    table = read_partition_table(disk)
    root = next(p for p in table.partitions if p.number == 1)
    with pytest.raises(UnsupportedError, match="partition 2 lies behind"):
        seal.grow_partition(disk, table, root)


@pytest.mark.slow
def test_the_archive_holds_the_edited_disk_and_is_the_same_twice(tmp_path: Path) -> None:
    path = make(tmp_path / "disk")
    with path.open("r+b") as file:
        file.seek(120 * MIB)
        file.write(os.urandom(5 * MIB))
    disk = open_edited(path, 1 << 30)
    seal.move_backup_gpt(disk)
    disk.write_at(200 * MIB + 3, b"changed")
    written = []
    for threads in (1, 2):
        with (tmp_path / f"image-{threads}.tar.gz").open("wb") as file:
            written.append(archive.write_archive(disk, file, modified=0, threads=threads))
    assert written[0] == written[1]
    with tarfile.open(tmp_path / "image-1.tar.gz") as tar:
        member = tar.extractfile("disk.raw")
        assert member is not None
        for offset in range(0, disk.size, 64 * MIB):
            assert member.read(64 * MIB) == disk.read_at(offset, 64 * MIB), offset
