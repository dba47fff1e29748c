"""Where things are on the disk of a base: partitions and identifiers, as on Compute Engine's own Debian images."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

SECTOR = 512
MIB = 1 << 20
DISK_SIZE = 10 << 30
"""Bytes; the smallest disk that Compute Engine's own images have."""

BIOS_BOOT_TYPE = "21686148-6449-6E6F-744E-656564454649"
ESP_TYPE = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B"
ROOT_TYPE = "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709"
"""x86-64 root (Discoverable Partitions Specification)."""


@dataclass(frozen=True)
class Partition:
    """One entry of the table: offset and length in bytes."""

    number: int
    offset: int
    length: int
    kind: str
    id: str

    @property
    def end(self) -> int:
        """The first byte behind it."""
        return self.offset + self.length


@dataclass(frozen=True)
class Layout:
    """The disk to be: every identifier follows from a seed, so that the same recipe gives the same disk."""

    size: int
    disk_id: str
    bios_boot: Partition
    esp: Partition
    root: Partition
    root_uuid: str
    esp_serial: str
    """Eight hexadecimal digits."""

    @property
    def esp_uuid(self) -> str:
        """The ESP's serial number as udev and fstab spell it."""
        return f"{self.esp_serial[:4]}-{self.esp_serial[4:]}"

    @property
    def grub_root(self) -> str:
        """The root partition as GRUB names it."""
        return f"gpt{self.root.number}"


def make_layout(seed: str, size: int = DISK_SIZE) -> Layout:
    """Lay out a disk: the root last, so that it can grow; 1 MiB alignment; room for the backup table.

    Args:
        seed: what identifiers follow from.
        size: bytes of the disk, whole MiB.
    """

    def identifier(name: str) -> str:
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"tpu-image:base:{seed}:{name}"))

    bios_boot = Partition(14, 1 * MIB, 3 * MIB, BIOS_BOOT_TYPE, identifier("bios boot partition"))
    esp = Partition(15, 4 * MIB, 124 * MIB, ESP_TYPE, identifier("esp partition"))
    root = Partition(1, 128 * MIB, size - 129 * MIB, ROOT_TYPE, identifier("root partition"))
    serial = identifier("esp")[:8].upper()
    return Layout(size, identifier("disk"), bios_boot, esp, root, identifier("root"), serial)


def sfdisk_script(layout: Layout) -> str:
    """The partition table in the language of sfdisk(8)."""
    lines = ["label: gpt", f"label-id: {layout.disk_id}", "unit: sectors", ""]
    for part in (layout.root, layout.bios_boot, layout.esp):
        start, length = part.offset // SECTOR, part.length // SECTOR
        lines.append(f"{part.number} : start={start}, size={length}, type={part.kind}, uuid={part.id}")
    return "\n".join(lines) + "\n"
