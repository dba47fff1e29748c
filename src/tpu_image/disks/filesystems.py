"""Telling what a partition holds by its content, with its UUID and label as blkid(8) gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tpu_image.disks.source import BlockSource


class FileSystem(NamedTuple):
    """What a partition holds: ``kind`` as blkid(8) names it (``TYPE``), ``uuid`` and ``label`` or empty."""

    kind: str
    uuid: str = ""
    label: str = ""

    @property
    def called(self) -> str:
        """What people call it."""
        return _CALLED.get(self.kind, self.kind)


_CALLED = {
    "xfs": "XFS",
    "btrfs": "Btrfs",
    "LVM2_member": "LVM",
    "crypto_LUKS": "LUKS encryption",
    "linux_raid_member": "Linux software RAID",
    "ntfs": "NTFS",
    "exfat": "exFAT",
    "vfat": "FAT",
    "iso9660": "ISO 9660",
}

Uuid = Callable[[bytes], str]


class _Signature(NamedTuple):
    """Where a kind's magic is, and from there its UUID (place, form) and label (place, length)."""

    kind: str
    offset: int
    magic: bytes
    uuid: int | None = None
    form: Uuid | None = None
    label: int | None = None
    label_length: int = 0
    encoding: str = "utf-8"


def _plain(data: bytes) -> str:
    """Write 16 bytes in order as a UUID."""
    text = data[:16].hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:])) if any(data[:16]) else ""


def _serial(data: bytes) -> str:
    """Write a FAT's volume number as Linux does."""
    return f"{data[3]:02X}{data[2]:02X}-{data[1]:02X}{data[0]:02X}"


def _ntfs_serial(data: bytes) -> str:
    return data[7::-1].hex().upper()


def _text(data: bytes) -> str:
    """LUKS and LVM store their identifiers as text."""
    return data.split(b"\0")[0].decode("ascii", "replace")


def _lvm(data: bytes) -> str:
    text = data[:32].decode("ascii", "replace")
    return "-".join((text[:6], text[6:10], text[10:14], text[14:18], text[18:22], text[22:26], text[26:]))


def _raid(data: bytes) -> str:
    text = data[:16].hex()
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


_SIGNATURES = (
    _Signature("crypto_LUKS", 0, b"LUKS\xba\xbe\x00\x01", 168, _text),
    _Signature("crypto_LUKS", 0, b"LUKS\xba\xbe\x00\x02", 168, _text, 24, 48),
    _Signature("linux_raid_member", 0x1000, b"\xfc\x4e\x2b\xa9\x01\0\0\0", 16, _raid, 32, 32),
    _Signature("linux_raid_member", 0, b"\xfc\x4e\x2b\xa9\x01\0\0\0", 16, _raid, 32, 32),
    *(_Signature("LVM2_member", sector * 512 + 24, b"LVM2 001", 8, _lvm) for sector in range(4)),
    _Signature("BitLocker", 3, b"-FVE-FS-"),
    _Signature("xfs", 0, b"XFSB", 32, _plain, 108, 12),
    _Signature("btrfs", 0x10040, b"_BHRfS_M", -0x20, _plain, 0xEB, 256),
    _Signature("squashfs", 0, b"hsqs"),
    _Signature("erofs", 1024, b"\xe2\xe1\xf5\xe0", 48, _plain, 64, 16),
    _Signature("f2fs", 1024, b"\x10\x20\xf5\xf2", 108, _plain, 124, 1024, "utf-16-le"),
    _Signature("bcachefs", 4096 + 24, bytes.fromhex("c68573f64e1a45ca8265f57f48ba6d81"), 32, _plain, 48, 32),
    _Signature("reiserfs", 65536 + 52, b"ReIsEr", 32, _plain, 48, 16),
    _Signature("jfs", 32768, b"JFS1", 136, _plain, 152, 16),
    _Signature("ntfs", 3, b"NTFS    ", 69, _ntfs_serial),
    _Signature("exfat", 3, b"EXFAT   ", 97, _serial),
    _Signature("iso9660", 32769, b"CD001", label=39, label_length=32),
    _Signature("swap", 4096 - 10, b"SWAPSPACE2", 1036 - 4086, _plain, 1052 - 4086, 16),
    _Signature("swap", 65536 - 10, b"SWAPSPACE2", 1036 - 65526, _plain, 1052 - 65526, 16),
)
"""Kinds told by one magic. Ones that stand for a whole disk (encryption, RAID, LVM) come first."""

_RAID_0_90 = b"\xfc\x4e\x2b\xa9"


def identify(source: BlockSource) -> FileSystem | None:
    """Tell what a partition (or a disk without partitions) holds; None where nothing is recognised.

    Reads a few bytes at each of some twenty places, and the root directory of a FAT for its label.
    """
    for signature in _SIGNATURES:
        if _peek(source, signature.offset, len(signature.magic)) == signature.magic:
            return _described(source, signature)
    return _ext(source) or _fat(source) or _raid_at_end(source)


def _peek(source: BlockSource, offset: int, length: int) -> bytes:
    return source.read_at(offset, length) if offset >= 0 and offset + length <= source.size else b""


def _described(source: BlockSource, signature: _Signature) -> FileSystem:
    uuid = label = ""
    if signature.uuid is not None and signature.form is not None:
        data = _peek(source, signature.offset + signature.uuid, 40)
        uuid = signature.form(data) if len(data) == 40 else ""
    if signature.label is not None:
        data = _peek(source, signature.offset + signature.label, signature.label_length)
        label = data.decode(signature.encoding, "replace").split("\0")[0].rstrip(" ")
    return FileSystem(signature.kind, uuid, label)


def _ext(source: BlockSource) -> FileSystem | None:
    """Tell ext2, ext3, ext4 apart as blkid does: by journal, and by features that only ext4 has."""
    data = _peek(source, 1024, 256)
    if data[56:58] != b"\x53\xef":
        return None
    compatible, incompatible, read_only = (
        int.from_bytes(data[at : at + 4], "little") for at in (92, 96, 100)
    )
    if incompatible & 0x8:
        kind = "jbd"
    elif incompatible & ~0x16 or read_only & ~0x7:
        kind = "ext4"
    else:
        kind = "ext3" if compatible & 0x4 else "ext2"
    label = data[120:136].split(b"\0")[0].decode("utf-8", "replace")
    return FileSystem(kind, _plain(data[104:120]), label)


def _fat(source: BlockSource) -> FileSystem | None:
    from tpu_image.disks.fat import FatTree, geometry_of

    geometry = geometry_of(_peek(source, 0, 512))
    if geometry is None:
        return None
    return FileSystem("vfat", _serial(geometry.serial), FatTree(source, geometry).label())


def _raid_at_end(source: BlockSource) -> FileSystem | None:
    """Look for the two layouts of Linux RAID that have their superblock at the end (md(4): 0.90 and 1.0)."""
    old = (source.size & ~0xFFFF) - 0x10000
    data = _peek(source, old, 64)
    if data[:4] == _RAID_0_90:
        uuid = b"".join(data[at : at + 4][::-1] for at in (20, 52, 56, 60))
        return FileSystem("linux_raid_member", _raid(uuid))
    new = (source.size // 512 - 16) // 8 * 8 * 512
    data = _peek(source, new, 64)
    if data[:8] == _RAID_0_90 + b"\x01\0\0\0":
        return FileSystem(
            "linux_raid_member", _raid(data[16:32]), data[32:64].split(b"\0")[0].decode("utf-8", "replace")
        )
    return None
