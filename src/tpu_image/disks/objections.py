"""What stands against a disk that can be read: Compute Engine's import, and GRUB on its own file system.

Compute Engine's rules: "Import boot disk images manually", section "Create the archive". GRUB's: grub-core/fs/ext2.c,
the incompatible features it supports or ignores, in GRUB 2.06 and from 2.12 on.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import NamedTuple

from tpu_image.disks.ext4.tree import Ext4Tree
from tpu_image.disks.image_tree import ImageTree
from tpu_image.disks.partitions import PartitionTable
from tpu_image.disks.source import BlockSource
from tpu_image.disks.tar_disk import DISK_NAME, TarDiskSource

GIB = 1 << 30

GRUB_READS = frozenset(
    {"filetype", "needs_recovery", "meta_bg", "extent", "64bit", "mmp", "flex_bg", "encrypt"}
)
GRUB_2_12_READS = GRUB_READS | {"metadata_csum_seed", "large_dir"}
"""Incompatible ext4 features that GRUB can read a file system with."""

PACK_AGAIN = f"pack it again with: tar --format=oldgnu -Sczf IMAGE.tar.gz {DISK_NAME}"


class Objection(NamedTuple):
    """Something that is wrong, ``where``, and what to do now; ``required`` unless it only may be in the way."""

    what: str
    where: str
    remedy: str
    required: bool = True


def import_objections(source: BlockSource, table: PartitionTable) -> list[Objection]:
    """Say what Compute Engine's import would refuse; of images in another container than its own, only the table."""
    objections = []
    if isinstance(source, TarDiskSource):
        member = source.member
        if member.form != "gnu":
            found = f"the archive is in {member.form} format, not GNU or old GNU"
            objections.append(Objection(found, source.name, PACK_AGAIN))
        if member.name != DISK_NAME:
            found = f"the disk in the archive is named {member.name!r}, not {DISK_NAME!r}"
            objections.append(Objection(found, source.name, PACK_AGAIN))
        if source.size % GIB:
            found = f"{DISK_NAME} has {source.size} bytes, not a whole number of GiB"
            remedy = f"grow it with: qemu-img resize -f raw {DISK_NAME} {-(-source.size // GIB)}G, then pack it again"
            objections.append(Objection(found, source.name, remedy))
        if not PurePath(source.name).name.endswith(".tar.gz"):
            objections.append(Objection("its name does not end in .tar.gz", source.name, "rename it"))
    objections += [
        Objection(problem, source.name, f"correct it with: sgdisk -e {DISK_NAME}")
        for problem in table.problems
    ]
    return objections


def grub_objections(tree: ImageTree) -> list[Objection]:
    """Say which features of the file system with /boot/grub GRUB does not read."""
    place, _ = tree.place_of(tree.resolve("/boot/grub"))
    if not isinstance(place.tree, Ext4Tree):
        return []
    features = place.tree.filesystem.superblock.incompatible_features
    never = [name for name in features if name not in GRUB_2_12_READS]
    recently = [name for name in features if name in GRUB_2_12_READS - GRUB_READS]
    where = place.volume.source.name
    objections = []
    if never:
        found = f"GRUB does not read ext4 with {', '.join(never)}, and /boot/grub is on it"
        objections.append(Objection(found, where, "put /boot on a file system without it"))
    if recently:
        found = f"GRUB before 2.12 may not read ext4 with {', '.join(recently)}, and /boot/grub is on it"
        objections.append(Objection(found, where, "boot it once before use, or update GRUB", required=False))
    return objections
