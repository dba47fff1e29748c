from __future__ import annotations

import struct

import pytest

from tpu_image.bases.bios_boot import BootCodeError, boot_sector, core_image

BOOT = bytes(range(1, 256)) + bytes(255) + b"\x55\xaa"
DISKBOOT = bytes(500) + struct.pack("<QHH", 2, 0, 0x820)


def test_the_boot_sector_knows_where_the_core_image_is_and_keeps_the_partition_table() -> None:
    sector = bytes(0x1B8) + b"signature, table".ljust(0x48, b"t")
    written = boot_sector(BOOT, sector, 2048)
    assert struct.unpack_from("<Q", written, 0x5C) == (2048,)
    assert written[0x66:0x68] == b"\x90\x90"
    assert written[:0x5C] == BOOT[:0x5C]
    assert written[0x68:0x1B8] == BOOT[0x68:0x1B8]
    assert written[0x1B8:] == sector[0x1B8:]


def test_the_core_image_knows_its_own_blocks() -> None:
    core = core_image(DISKBOOT + b"kernel" * 200, 2048, 4096)
    assert len(core) == 4 * 512
    assert struct.unpack_from("<QHH", core, 500) == (2049, 3, 0x820)
    assert core[512:1712] == b"kernel" * 200


@pytest.mark.parametrize("image", [b"", BOOT[:-1], BOOT[:-2] + b"\0\0"])
def test_what_is_no_boot_image_is_refused(image: bytes) -> None:
    with pytest.raises(BootCodeError, match=r"boot\.img"):
        boot_sector(image, bytes(512), 2048)


@pytest.mark.parametrize(
    "image", [b"", DISKBOOT, DISKBOOT + bytes(4096), bytes(480) + b"x" * 32 + bytes(512)]
)
def test_what_is_no_core_image_or_does_not_fit_is_refused(image: bytes) -> None:
    with pytest.raises(BootCodeError, match=r"core\.img"):
        core_image(image, 2048, 4096)
