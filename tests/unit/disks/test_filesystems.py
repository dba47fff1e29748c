"""What a partition holds is named as blkid names it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from disk_tools import ENVIRONMENT, run, sparse
from tpu_image.disks.filesystems import FileSystem, identify
from tpu_image.disks.raw import open_raw

MIB = 1 << 20

MAKERS = {
    "ext2": ["mkfs.ext4", "-q", "-t", "ext2", "-L", "old"],
    "ext3": ["mkfs.ext4", "-q", "-t", "ext3", "-L", "older"],
    "ext4": ["mkfs.ext4", "-q", "-L", "cloudimg-rootfs"],
    "fat12": ["mkfs.vfat", "-F", "12", "-n", "TWELVE"],
    "fat16": ["mkfs.vfat", "-F", "16", "-n", "UEFI BOOT"],
    "fat32": ["mkfs.vfat", "-F", "32"],
    "xfs": ["mkfs.xfs", "-q", "-L", "red"],
    "btrfs": ["mkfs.btrfs", "-q", "-L", "butter"],
    "swap": ["mkswap", "-q", "-L", "exchange"],
    "swap of large pages": ["mkswap", "-q", "-p", "65536", "-L", "large"],
    "f2fs": ["mkfs.f2fs", "-q", "-l", "flash"],
    "ntfs": ["mkfs.ntfs", "-q", "-F", "-f"],
    "exfat": ["mkfs.exfat"],
    "LUKS 1": ["cryptsetup", "luksFormat", "-q", "--type", "luks1", "--pbkdf-force-iterations", "1000"],
    "LUKS 2": [
        "cryptsetup", "luksFormat", "-q", "--type", "luks2", "--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000",
        "--label", "vault",
    ],
}  # fmt: skip

RAID = "fc4e2ba9"
BY_HAND = {
    "LVM": {512: b"LABELONE" + bytes(16) + b"LVM2 001" + b"0123456789abcdefghijklmnopqrstuv" + bytes(8)},
    "RAID 1.2": {
        4096: bytes.fromhex(RAID) + b"\1\0\0\0" + bytes(8) + bytes(range(1, 17)) + b"host:0" + bytes(26)
    },
    "RAID 1.1": {
        0: bytes.fromhex(RAID) + b"\1\0\0\0" + bytes(8) + bytes(range(1, 17)) + b"host:1" + bytes(26)
    },
    "RAID 1.0": {
        64 * MIB - 8192: bytes.fromhex(RAID) + b"\1\0\0\0" + bytes(8) + bytes(range(1, 17)) + b"h:2"
    },
    "RAID 0.90": {
        64 * MIB - 65536: bytes.fromhex(RAID) + bytes(4) + b"\x5a" + bytes(11) + bytes(range(1, 49))
    },
}


def identified(path: Path) -> FileSystem | None:
    with open_raw(str(path)) as source:
        return identify(source)


def blkid(path: Path) -> dict[str, str]:
    lines = run("blkid", "-p", "-o", "export", path, good=(0, 2)).splitlines()
    return {key: value.replace("\\ ", " ") for key, _, value in (line.partition("=") for line in lines)}


def agrees_with_blkid(path: Path) -> FileSystem:
    ours, theirs = identified(path), blkid(path)
    assert ours is not None
    assert ours.kind == theirs["TYPE"]
    assert ours.uuid == theirs.get("UUID", "")
    assert ours.label == theirs.get("LABEL", "")
    return ours


@pytest.mark.parametrize("name", MAKERS)
def test_what_mkfs_made_is_named_as_blkid_names_it(tmp_path: Path, name: str) -> None:
    size = 12 * MIB if name == "fat12" else 320 * MIB
    path = sparse(tmp_path / "partition", size)
    run(*MAKERS[name], path, text="secret" if "LUKS" in name else "")
    assert agrees_with_blkid(path).kind


def test_squashfs_erofs_and_iso_are_named_as_blkid_names_them(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "file").write_text("x")
    run("mksquashfs", tmp_path / "in", tmp_path / "squashfs", "-quiet")
    run("mkfs.erofs", tmp_path / "erofs", tmp_path / "in")
    run("xorriso", "-as", "mkisofs", "-V", "DISC", "-o", tmp_path / "iso", tmp_path / "in")
    kinds = []
    for name in ("squashfs", "erofs", "iso"):
        ours = identified(tmp_path / name)
        assert ours is not None
        assert (ours.kind, ours.label) == (
            blkid(tmp_path / name)["TYPE"],
            blkid(tmp_path / name).get("LABEL", ""),
        )
        kinds.append(ours.kind)
    assert kinds == ["squashfs", "erofs", "iso9660"]


@pytest.mark.parametrize("name", BY_HAND)
def test_lvm_and_raid_are_named(tmp_path: Path, name: str) -> None:
    ours = identified(sparse(tmp_path / "partition", 64 * MIB, BY_HAND[name]))
    assert ours is not None
    assert ours.called == ("LVM" if name == "LVM" else "Linux software RAID")
    assert len(ours.uuid) >= 36


def test_noise_and_nothing_are_not_recognised(tmp_path: Path) -> None:
    assert identified(sparse(tmp_path / "zero", MIB)) is None
    assert identified(sparse(tmp_path / "empty", 0)) is None
    assert identified(sparse(tmp_path / "noise", MIB, {0: random.Random(4).randbytes(MIB)})) is None


def test_the_tools_are_found_where_debian_has_them() -> None:
    assert "/usr/sbin" in ENVIRONMENT["PATH"].split(":")
