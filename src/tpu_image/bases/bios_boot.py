"""GRUB made to start by BIOS: what grub-bios-setup(8) writes, for a core image in a BIOS boot partition.

Facts: GRUB, ``include/grub/i386/pc/boot.h`` (offsets in the boot sector) and ``include/grub/offsets.h``; the manual,
"BIOS installation" and "Images". The boot sector loads one sector, from an absolute place; that sector, the first of
the core image, ends in a list of blocks from which it loads the rest.
"""

from __future__ import annotations

import struct

from tpu_image.bases.layout import SECTOR

CORE_SECTOR = 0x5C
"""In the boot sector: 64 bits, the sector where the core image starts."""

DRIVE_CHECK = 0x66
"""In the boot sector: a jump that a hard disk does without, since some BIOSes pass a wrong drive number."""

NO_JUMP = b"\x90\x90"

CODE_END = 0x1B8
"""The end of the code in a boot sector; the disk's signature and the MBR partition table follow."""

BLOCK_LIST = struct.Struct("<QHH")
"""The last entry of the list in the core image's first sector: start sector, sectors, segment to load to."""

SEGMENT = 0x820
"""Where the second sector of the core image is loaded: the first is at 0x8000."""


class BootCodeError(ValueError):
    """A file of GRUB's has not the form it should have."""


def boot_sector(image: bytes, sector: bytes, core_sector: int) -> bytes:
    """Put GRUB's boot code into the first sector of a disk.

    Args:
        image: ``boot.img``, 512 bytes.
        sector: the disk's first sector, whose signature and partition table stay.
        core_sector: where the core image starts.

    Raises:
        BootCodeError: the image is not what GRUB has.
    """
    if len(image) != SECTOR or image[-2:] != b"\x55\xaa":
        raise BootCodeError("boot.img is no boot sector")
    code = bytearray(image[:CODE_END])
    struct.pack_into("<Q", code, CORE_SECTOR, core_sector)
    code[DRIVE_CHECK : DRIVE_CHECK + 2] = NO_JUMP
    return bytes(code) + sector[CODE_END:]


def core_image(image: bytes, core_sector: int, room: int) -> bytes:
    """Tell a core image where it is: whole sectors, in one piece.

    Args:
        image: what grub-mkimage made.
        core_sector: where it starts.
        room: bytes of the partition that it goes into.

    Raises:
        BootCodeError: it does not fit, or is no core image.
    """
    sectors = -(-len(image) // SECTOR)
    if sectors < 2 or sectors * SECTOR > room:
        raise BootCodeError(f"core.img has {len(image)} bytes, where 1024 to {room} fit")
    entry = SECTOR - BLOCK_LIST.size
    if image[entry - BLOCK_LIST.size : entry] != bytes(BLOCK_LIST.size):
        raise BootCodeError("core.img has a list of blocks already")
    code = bytearray(image.ljust(sectors * SECTOR, b"\0"))
    BLOCK_LIST.pack_into(code, entry, core_sector + 1, sectors - 1, SEGMENT)
    return bytes(code)
