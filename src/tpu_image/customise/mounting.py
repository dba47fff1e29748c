"""What of a disk is mounted where while its programs run."""

from __future__ import annotations

from typing import NamedTuple

from tpu_image.disks.image_tree import ImageTree, Place
from tpu_image.disks.volumes import EXT_KINDS, encoded, keys_of


class MountedVolume(NamedTuple):
    """A volume of the disk.

    Attributes:
        path: where it is mounted; ``kind``: as mount(8) calls the file system.
        number: of its partition, from 1; 0 where the whole disk is one volume.
        start, size: of the partition, in bytes.
        links: names below /dev that udev would give it.
    """

    path: str
    kind: str
    number: int
    start: int
    size: int
    links: list[str]


def mounted_volumes(tree: ImageTree) -> list[MountedVolume]:
    """Give the volumes that Linux mounts of a system, its root first."""
    return [_volume(place) for place in tree.places if place.volume.kind in (*EXT_KINDS, "vfat")]


def _volume(place: Place) -> MountedVolume:
    volume = place.volume
    partition = volume.partition
    return MountedVolume(
        place.path,
        "ext4" if volume.kind in EXT_KINDS else volume.kind,
        partition.number if partition else 0,
        partition.start if partition else 0,
        partition.size if partition else 0,
        [f"/dev/disk/by-{key}/{encoded(value)}" for key, value in keys_of(volume) if key != "number"],
    )
