"""A disk of a root file system, without a mount or a loop device: tools write at offsets into one sparse file."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tpu_image.bases.bios_boot import BootCodeError, boot_sector, core_image
from tpu_image.bases.errors import BaseError
from tpu_image.bases.layout import SECTOR, Layout, sfdisk_script
from tpu_image.bases.namespace import find_tool

PACKAGES = {
    "mcopy": "mtools",
    "mke2fs": "e2fsprogs",
    "mkfs.vfat": "dosfstools",
    "qemu-img": "qemu-utils",
    "sfdisk": "fdisk",
}
"""Debian packages by the tools they bring."""

MKE2FS_CONFIGURATION = Path(__file__).parent / "files" / "mke2fs.conf"


def make_disk(root: Path, esp: Path, layout: Layout, disk: Path, as_root: Sequence[str]) -> None:
    """Write a disk image that starts by BIOS and by UEFI.

    Args:
        root: the folder of the root file system, with GRUB's images in ``boot/grub/i386-pc``.
        esp: the folder of the files of the EFI system partition.
        layout: where things go.
        disk: the file to make.
        as_root: what makes a command see the owners of the root's files.

    Raises:
        BaseError: a tool is missing, or failed.
    """
    with disk.open("xb") as file:
        file.truncate(layout.size)
    _run("sfdisk", "--quiet", disk, text=sfdisk_script(layout))
    _write_esp(esp, layout, disk)
    _write_root(root, layout, disk, as_root)
    _write_boot_code(root / "boot/grub/i386-pc", layout, disk)


def _write_esp(esp: Path, layout: Layout, disk: Path) -> None:
    # FAT32 needs 65,525 clusters; of one sector each there are enough.
    form = ("-F", "32", "-s", "1", "-n", "UEFI", "-i", layout.esp_serial)
    _run("mkfs.vfat", *form, "--offset", layout.esp.offset // SECTOR, disk, layout.esp.length // 1024)
    _run("mcopy", "-s", "-m", "-i", f"{disk}@@{layout.esp.offset}", *sorted(esp.iterdir()), "::/")


def _write_root(root: Path, layout: Layout, disk: Path, as_root: Sequence[str]) -> None:
    extended = f"offset={layout.root.offset},hash_seed={layout.root_uuid}"
    form = ("-q", "-F", "-t", "ext4", "-L", "root", "-U", layout.root_uuid, "-E", extended)
    place = ("-d", root, disk, layout.root.length // 1024)
    _run("mke2fs", *form, *place, prefix=as_root, MKE2FS_CONFIG=str(MKE2FS_CONFIGURATION))


def _write_boot_code(images: Path, layout: Layout, disk: Path) -> None:
    start = layout.bios_boot.offset // SECTOR
    try:
        core = core_image((images / "core.img").read_bytes(), start, layout.bios_boot.length)
        with disk.open("r+b") as file:
            sector = boot_sector((images / "boot.img").read_bytes(), file.read(SECTOR), start)
            file.seek(0)
            file.write(sector)
            file.seek(layout.bios_boot.offset)
            file.write(core)
    except BootCodeError as error:
        raise BaseError(f"GRUB of this release is not as expected: {error}; report it") from None


def compress(disk: Path, output: Path) -> None:
    """Write a disk as a compressed qcow2.

    Raises:
        BaseError: the tool is missing, or failed.
    """
    _run("qemu-img", "convert", "-q", "-c", "-m", "4", "-f", "raw", "-O", "qcow2", disk, output)


def _run(tool: str, *options: object, prefix: Sequence[str] = (), text: str = "", **environment: str) -> None:
    command = [*prefix, find_tool(tool, PACKAGES[tool]), *map(str, options)]
    variables = {**os.environ, "LC_ALL": "C.UTF-8", **environment}
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, env=variables)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise BaseError(f"{tool} failed: {reason}; look whether there is room on the disk")
