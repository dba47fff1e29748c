"""A journal that we replay leaves what e2fsck's replay leaves."""

from __future__ import annotations

import os
import random
import re
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from disk_tools import BytesSource, edit, run, sparse, whole
from mutations import fuzz
from tpu_image.disks.edited import EditedDisk, EditedSection
from tpu_image.disks.errors import DamagedError, DiskError, UnsupportedError
from tpu_image.disks.ext4.replay import replay
from tpu_image.disks.raw import RawSource

MIB = 1 << 20
SIZE = 16 * MIB
MAGIC = bytes.fromhex("c03b3998")

CHECKSUMS = {"version 3": "-c", "none": "", "version 2": "-c -v 2"}

FEATURE_SETS = {
    "as Debian 12 makes it": ["-t", "ext4"],
    "small blocks": ["-t", "ext4", "-b", "1024"],
    "large blocks": ["-t", "ext4", "-b", "4096"],
    "32-bit numbers": ["-t", "ext4", "-O", "^64bit"],
    "ext3": ["-t", "ext3"],
    "as Ubuntu 24.04 makes it": ["-t", "ext4", "-O", "metadata_csum_seed,orphan_file"],
}


def make(folder: Path, options: list[str]) -> Path:
    image = sparse(folder / "image", SIZE)
    run("mkfs.ext4", "-q", "-F", "-J", "size=4", *options, image)
    return image


def block_size(image: Path) -> int:
    found = re.search(r"Block size: +(\d+)", run("dumpe2fs", "-h", image))
    assert found
    return int(found[1])


def free_blocks(image: Path, count: int) -> list[int]:
    done = run("debugfs", "-R", f"ffb {count}", image)
    return [int(number) for number in re.findall(r"\d+", done.partition(":")[2])]


def journal(image: Path, *commands: str) -> None:
    """Write transactions into the journal with debugfs and leave them there."""
    edit(image, *commands)
    assert "needs_recovery" in run("dumpe2fs", "-h", image)


def replayed(image: Path) -> bytes:
    disk = EditedDisk(RawSource(os.open(image, os.O_RDONLY), str(image)))
    with disk.base:
        replay(EditedSection(disk, 0, disk.size, "part"))
        return whole(disk)


def judged(image: Path) -> bytes:
    """What e2fsck makes of a copy, by replay alone."""
    copy = image.with_name("judged")
    copy.write_bytes(image.read_bytes())
    run("e2fsck", "-E", "journal_only", "-fy", copy, good=(0, 1))
    return copy.read_bytes()


def assert_equal(ours: bytes, theirs: bytes, size: int) -> None:
    """Both are the same but for the superblocks, where e2fsck notes when it ran and counts."""
    differing = [
        at // size for at in range(0, len(ours), size) if ours[at : at + size] != theirs[at : at + size]
    ]
    journal_superblocks = [block for block in differing if ours[block * size :].startswith(MAGIC)]
    assert set(differing) <= {0, 1024 // size, *journal_superblocks}


@pytest.mark.parametrize(
    ("features", "checksums"),
    [
        (features, checksums)
        for features in FEATURE_SETS
        for checksums in CHECKSUMS
        # Without metadata_csum debugfs writes checksums that e2fsck calls wrong too.
        if features != "ext3" or checksums == "none"
    ],
)
def test_committed_writes_are_put_in_place(features: str, checksums: str, tmp_path: Path) -> None:
    image = make(tmp_path, FEATURE_SETS[features])
    size = block_size(image)
    one, two, three, four = free_blocks(image, 4)
    noise = random.Random(4)
    (tmp_path / "first").write_bytes(noise.randbytes(3 * size))
    (tmp_path / "second").write_bytes(MAGIC + noise.randbytes(size - 4))  # is escaped in the journal
    journal(
        image,
        f"jo {CHECKSUMS[checksums]}",
        f"jw -b {one},{two},{three} {tmp_path}/first",
        f"jw -b {one} {tmp_path}/second",
        f"jw -b {four} {tmp_path}/second -c",
        f"jw -r {four}",
        "jc",
    )
    ours = replayed(image)
    assert ours[one * size : (one + 1) * size] == (tmp_path / "second").read_bytes()
    assert not any(ours[four * size : (four + 1) * size]), "revoked"
    assert_equal(ours, judged(image), size)
    (tmp_path / "ours").write_bytes(ours)
    run("e2fsck", "-fn", tmp_path / "ours")
    assert "needs_recovery" not in run("dumpe2fs", "-h", tmp_path / "ours")


def with_journal(folder: Path) -> tuple[Path, int]:
    """A journal with two transactions; its place in the image."""
    image = make(folder, ["-b", "1024"])
    (folder / "data").write_bytes(random.Random(5).randbytes(8 * 1024))
    blocks = free_blocks(image, 8)
    listed = ",".join(map(str, blocks))
    journal(image, "jo -c", f"jw -b {listed} {folder}/data", f"jw -b {listed} {folder}/data", "jc")
    return image, image.read_bytes().index(MAGIC + struct.pack(">I", 4))


def flip(image: Path, at: int) -> None:
    with image.open("r+b") as file:
        file.seek(at)
        value = file.read(1)[0]
        file.seek(at)
        file.write(bytes((value ^ 1,)))


def of_kind(image: Path, kind: int) -> int:
    """Where the first journal block of a kind is."""
    return image.read_bytes().index(MAGIC + struct.pack(">I", kind))


DAMAGED: dict[str, tuple[Callable[[Path, int], int], str]] = {
    "superblock": (lambda image, at: at + 25, "the checksum of its superblock is wrong"),
    "descriptor": (lambda image, at: of_kind(image, 1) + 13, "the checksum of its transaction"),
    "content": (lambda image, at: of_kind(image, 1) + 1024, "the checksum of a block of its transaction"),
    "commit": (lambda image, at: of_kind(image, 2) + 50, "the checksum of its transaction"),
}


@pytest.mark.parametrize("part", DAMAGED)
def test_a_damaged_journal_is_refused_by_name(part: str, tmp_path: Path) -> None:
    image, at = with_journal(tmp_path)
    place, message = DAMAGED[part]
    flip(image, place(image, at))
    with pytest.raises(DamagedError, match=message):
        replayed(image)


def test_a_transaction_that_was_not_committed_does_not_count(tmp_path: Path) -> None:
    image, _ = with_journal(tmp_path)
    data = image.read_bytes()
    second = data.index(MAGIC + struct.pack(">I", 2), of_kind(image, 2) + 1)
    with image.open("r+b") as file:
        file.seek(second)
        file.write(bytes(1024))
    assert_equal(replayed(image), judged(image), 1024)


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        (40, 0x20, "fast_commit"),
        (40, 0x800, "feature 0x800"),
        (20, 0, "places outside"),
        (16, 1 << 30, "places outside"),
        (32, 5, "noted an error"),
        (12, 2048, "superblock is damaged"),
    ],
)
def test_a_journal_that_is_not_understood_is_refused_by_name(
    offset: int, value: int, message: str, tmp_path: Path
) -> None:
    image, at = with_journal(tmp_path)
    with image.open("r+b") as file:
        file.seek(at + 36)
        file.write(bytes(12))  # no features, so no checksum
        file.seek(at + offset)
        file.write(struct.pack(">I", value))
    with pytest.raises(DiskError, match=message) as caught:
        replayed(image)
    assert isinstance(caught.value, DamagedError | UnsupportedError)


def test_a_journal_of_more_than_can_be_held_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, _ = with_journal(tmp_path)
    monkeypatch.setattr("tpu_image.disks.ext4.journal.WRITES_LIMIT", 15 * 1024)
    with pytest.raises(UnsupportedError, match="holds more than"):
        replayed(image)


def test_a_journal_that_only_revokes_is_not_read_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = make(tmp_path, ["-b", "1024"])
    journal(image, "jo -c", *(f"jw -r {block}" for block in free_blocks(image, 8)), "jc")
    replayed(image)
    monkeypatch.setattr("tpu_image.disks.ext4.journal.WRITES_LIMIT", 15 * 1024)
    with pytest.raises(UnsupportedError, match="holds more than"):
        replayed(image)


def test_an_orphan_file_larger_than_any_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = make(tmp_path, ["-b", "1024", "-O", "metadata_csum_seed,orphan_file"])
    edit(image, "feature orphan_present")
    journal(image, "jo -c", f"jw -r {free_blocks(image, 1)[0]}", "jc")
    replayed(image)
    monkeypatch.setattr("tpu_image.disks.ext4.replay.ORPHAN_FILE_LIMIT", 1)
    with pytest.raises(DamagedError, match="the orphan file, inode 12, is larger than any"):
        replayed(image)


def replay_all(data: bytearray) -> None:
    disk = EditedDisk(BytesSource(data))
    replay(EditedSection(disk, 0, disk.size, "part"))


@pytest.mark.parametrize("checksums", ["", "-c"])
def test_mutated_journals_are_replayed_or_refused(checksums: str, tmp_path: Path) -> None:
    image = sparse(tmp_path / "image", 3 * MIB)
    run("mkfs.ext4", "-q", "-F", "-b", "1024", "-N", "64", "-J", "size=1", "-O", "^metadata_csum", image)
    (tmp_path / "data").write_bytes(bytes(3 * 1024))
    blocks = ",".join(map(str, free_blocks(image, 3)))
    journal(
        image,
        f"jo {checksums}",
        f"jw -b {blocks} {tmp_path}/data",
        f"jw -b {blocks} -r {blocks} {tmp_path}/data",
    )
    data = image.read_bytes()
    start = data.index(MAGIC + struct.pack(">I", 4))
    areas = [(start, 100), *((start + 1024 * block, 64) for block in range(1, 9)), (1024, 264)]
    fuzz(data, areas, 200, replay_all)
