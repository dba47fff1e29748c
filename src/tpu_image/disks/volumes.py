"""The parts of a disk that hold something: what each is, and the names it goes by."""

from __future__ import annotations

from typing import NamedTuple

from tpu_image.disks.errors import UnsupportedError
from tpu_image.disks.ext4.filesystem import Ext4FileSystem
from tpu_image.disks.ext4.tree import Ext4Tree
from tpu_image.disks.fat import open_fat
from tpu_image.disks.filesystems import FileSystem, identify
from tpu_image.disks.fstab import device_key
from tpu_image.disks.mounted import DeviceTree
from tpu_image.disks.partitions import Partition, PartitionTable, partition_source
from tpu_image.disks.source import BlockSource
from tpu_image.trees.base import Tree

EXT_KINDS = ("ext2", "ext3", "ext4")
READABLE_KINDS = (*EXT_KINDS, "vfat")

MANUALLY = "mount it on a machine that can, and name the directory instead of the image"


class Volume(NamedTuple):
    """A part of a disk that holds something: a partition, or (None) the whole disk."""

    partition: Partition | None
    source: BlockSource
    file_system: FileSystem | None

    @property
    def called(self) -> str:
        """What messages call it."""
        return f"partition {self.partition.number}" if self.partition else "the disk"

    @property
    def type(self) -> str:
        """The partition's type; empty for a whole disk."""
        return self.partition.type if self.partition else ""

    @property
    def kind(self) -> str:
        """The file system's kind; empty where none was recognised."""
        return self.file_system.kind if self.file_system else ""


def volumes_of(source: BlockSource, table: PartitionTable) -> tuple[Volume, ...]:
    """Tell what each partition holds, or the disk where it has none."""
    if table.scheme == "none":
        return (Volume(None, source, identify(source)),)
    sections = ((partition, partition_source(source, partition)) for partition in table.partitions)
    return tuple(Volume(partition, section, identify(section)) for partition, section in sections)


def tree_of(volume: Volume, path: str) -> Tree:
    """Open a volume's files; ``path`` is what it is wanted for.

    Raises:
        UnsupportedError: the kind of file system is not supported.
    """
    if volume.kind in EXT_KINDS:
        return Ext4Tree(Ext4FileSystem(volume.source))
    if volume.kind == "vfat":
        return open_fat(volume.source)
    called = volume.file_system.called if volume.file_system else "an unknown file system"
    raise UnsupportedError(f"{path} is on {called} ({volume.called})", volume.source.name, MANUALLY)


def keys_of(volume: Volume) -> list[tuple[str, str]]:
    """Give what a volume can be named by, in the words of :func:`~tpu_image.disks.fstab.device_key`."""
    keys = []
    if volume.file_system:
        keys += [("uuid", volume.file_system.uuid), ("label", volume.file_system.label)]
    if volume.partition:
        keys += [
            ("partuuid", volume.partition.uuid),
            ("partlabel", volume.partition.name),
            ("number", str(volume.partition.number)),
        ]
    return [(key, value) for key, value in keys if value]


def find_volume(device: str, volumes: tuple[Volume, ...]) -> Volume | None:
    """Find the volume that a line of fstab names; None where the disk has none such."""
    key, value = device_key(device)
    if key in ("uuid", "partuuid"):
        value = value.lower()
        keyed = ((v, [(k, name.lower()) for k, name in keys_of(v)]) for v in volumes)
        return next((volume for volume, keys in keyed if (key, value) in keys), None)
    return next((volume for volume in volumes if (key, value) in keys_of(volume)), None)


def device_tree(volumes: tuple[Volume, ...]) -> DeviceTree:
    """Make the links that udev would, to devices named as those of a first disk."""
    links = {}
    for volume in volumes:
        device = f"sda{volume.partition.number}" if volume.partition else "sda"
        for key, value in keys_of(volume):
            if key != "number":
                links[f"/disk/by-{key}/{encoded(value)}"] = device
    return DeviceTree(links)


def encoded(name: str) -> str:
    """Write a name as udev does in links: what is neither safe nor a letter of any script in hexadecimal."""
    return "".join(
        char if char.isalnum() or char in "#+-.:=@_" else "".join(f"\\x{byte:02x}" for byte in char.encode())
        for char in name
    )
