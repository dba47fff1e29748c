"""Makes the disks that the folders below ``tests/disks`` describe; adding a kind of disk needs no code.

``case.yaml`` holds:

- ``about``: the state, in a line;
- ``table``: ``gpt`` (the default), ``dos`` or ``none``; ``parts``: what the partitions hold, in order: ``efi``,
  ``boot``, ``root``, ``swap``; the default is efi and root;
- ``root``: what the root is made with: options of mkfs.ext4, or in ``made_by`` another program's whole command;
- ``size``: bytes of the disk where it is to be larger than its partitions, the GPT's backup moved along;
- ``damage``: bytes to write over, as pairs of place (from the end where negative) and hexadecimal text;
- ``container``: commands that make ``image`` of ``disk.raw``, run in its folder; without any it is the image;
- ``image``: the image's name; the default is ``image``;
- ``expect``: verdicts by requirement, as in ``tests/cases``; or ``refused``: a part of the one line that refuses it.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import yaml

import build_bases as bases
from disk_tools import run, sparse

DISKS = Path(__file__).parent / "disks"
GPT_TYPES = {
    "efi": bases.EFI,
    "boot": bases.BOOT,
    "root": bases.ROOT,
    "swap": "0657FD6D-A4AB-43C4-84E5-0933C84B4F4F",
}
MBR_TYPES = {"efi": "ef", "boot": "83", "root": "83", "swap": "82"}


def load(folder: Path) -> dict[str, Any]:
    """Read a case."""
    case = yaml.safe_load((folder / "case.yaml").read_text())
    assert isinstance(case, dict)
    return case


def make(case: dict[str, Any], folder: Path) -> Path:
    """Make the disk of a case in an empty folder; give the image."""
    disk = folder / "disk.raw"
    table = case.get("table", "gpt")
    parts = case.get("parts", ["root"] if table == "none" else ["efi", "root"])
    images = file_systems(case, parts, folder)
    if table == "none":
        images["root"].rename(disk)
    else:
        types = GPT_TYPES if table == "gpt" else MBR_TYPES
        bases.disk(disk, *((types[part], images[part]) for part in parts), label=table)
    if "size" in case:
        os.truncate(disk, case["size"])
        if table == "gpt" and case["size"] % 512 == 0:
            run("sgdisk", "-e", disk)
    for place, text in case.get("damage", []):
        with disk.open("r+b") as file:
            file.seek(place, os.SEEK_SET if place >= 0 else os.SEEK_END)
            file.write(bytes.fromhex(text))
    image = folder / str(case.get("image", "image"))
    for command in case.get("container", [f"mv disk.raw {image.name}"]):
        run("env", "-C", folder, *shlex.split(command))
    return image


def file_systems(case: dict[str, Any], parts: list[str], folder: Path) -> dict[str, Path]:
    """Make what the partitions hold."""
    efi, boot = "efi" in parts, "boot" in parts
    without = [bases.EFI_STUB] if boot else []
    top = bases.root_folder(folder / "root", without, efi=efi)
    if boot:
        (top / "boot").rename(folder / "boot")
        (top / "boot").mkdir()
        fstab = top / "etc/fstab"
        fstab.write_text(f"{fstab.read_text()}UUID={bases.BOOT_UUID} /boot ext4 defaults 0 2\n")
    root = folder / "root.image"
    if "made_by" in case:
        size, *command = case["made_by"]
        run(*command, sparse(root, size))
    else:
        bases.file_system(root, top, *case.get("root", []))
    images = {"root": root}
    if boot:
        images["boot"] = bases.file_system(
            folder / "boot.image", folder / "boot", uuid=bases.BOOT_UUID, size=8 * bases.MIB
        )
    if efi:
        prefix = (bases.BOOT_UUID, "/grub") if boot else (bases.ROOT_UUID, "/boot/grub")
        images["efi"] = bases.efi_partition(folder / "efi.image", *prefix)
    if "swap" in parts:
        images["swap"] = sparse(folder / "swap.image", 2 * bases.MIB)
        run("mkswap", images["swap"])
    return images
