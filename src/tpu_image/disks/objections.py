"""What stands against a disk that can be read: Compute Engine's import, and GRUB on its own file system.

Compute Engine's rules: "Import boot disk images manually", section "Create the archive". GRUB's: grub-core/fs/ext2.c,
the incompatible features it supports or ignores, in GRUB 2.06 and from 2.12 on.
"""

from __future__ import annotations

from pathlib import PurePath

from tpu_image.disks.ext4.tree import Ext4Tree
from tpu_image.disks.image_tree import ImageTree, open_tree
from tpu_image.disks.partitions import PartitionTable
from tpu_image.disks.recovery import recovered
from tpu_image.disks.source import BlockSource
from tpu_image.disks.tar_disk import DISK_NAME, TarDiskSource
from tpu_image.trees.base import Fault

GIB = 1 << 30

GRUB_READS = frozenset(
    {"filetype", "needs_recovery", "meta_bg", "extent", "64bit", "mmp", "flex_bg", "encrypt"}
)
GRUB_2_12_READS = GRUB_READS | {"metadata_csum_seed", "large_dir"}
"""Incompatible ext4 features that GRUB can read a file system with."""

SHUT_DOWN = "take the image of a machine that was shut down; it was read as after the replay of its journal"

PACK_AGAIN = f"pack it again with: tar --format=oldgnu -Sczf IMAGE.tar.gz {DISK_NAME}"


def import_objections(source: BlockSource, table: PartitionTable) -> list[Fault]:
    """Say what Compute Engine's import would refuse; of images in another container than its own, only the table."""
    objections = []
    if isinstance(source, TarDiskSource):
        member = source.member
        if member.form != "gnu":
            found = f"the archive is in {member.form} format, not GNU or old GNU"
            objections.append(Fault(found, source.name, PACK_AGAIN))
        if member.name != DISK_NAME:
            found = f"the disk in the archive is named {member.name!r}, not {DISK_NAME!r}"
            objections.append(Fault(found, source.name, PACK_AGAIN))
        if source.size % GIB:
            found = f"{DISK_NAME} has {source.size} bytes, not a whole number of GiB"
            remedy = f"grow it with: qemu-img resize -f raw {DISK_NAME} {-(-source.size // GIB)}G, then pack it again"
            objections.append(Fault(found, source.name, remedy))
        if not PurePath(source.name).name.endswith(".tar.gz"):
            objections.append(Fault("its name does not end in .tar.gz", source.name, "rename it"))
    objections += [
        Fault(problem, source.name, f"correct it with: sgdisk -e {DISK_NAME}") for problem in table.problems
    ]
    return objections


def grub_objections(tree: ImageTree) -> list[Fault]:
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
        objections.append(Fault(found, where, "put /boot on a file system without it"))
    if recently:
        found = f"GRUB before 2.12 may not read ext4 with {', '.join(recently)}, and /boot/grub is on it"
        objections.append(Fault(found, where, "boot it once before use, or update GRUB", required=False))
    return objections


def open_system(source: BlockSource) -> ImageTree:
    """Find the operating system on a disk, and note what stands against the disk as the tree's faults.

    Journals that need replay are replayed in memory.

    Raises:
        DiskError: as :func:`~tpu_image.disks.image_tree.open_tree` and
            :func:`~tpu_image.disks.recovery.recovered` do.
    """
    disk, replayed = recovered(source)
    tree = open_tree(disk)
    unclean = [
        Fault(f"{name} was not unmounted", source.name, SHUT_DOWN, required=False) for name in replayed
    ]
    tree.faults = (*import_objections(source, tree.table), *grub_objections(tree), *unclean)
    return tree
