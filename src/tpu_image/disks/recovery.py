"""Disks whose file systems were not unmounted: read as they will be once their journals are replayed."""

from __future__ import annotations

from tpu_image.disks.edited import EditedDisk, EditedSection
from tpu_image.disks.errors import DiskError
from tpu_image.disks.image_tree import open_tree
from tpu_image.disks.partitions import read_partition_table
from tpu_image.disks.source import BlockSource, Section
from tpu_image.disks.volumes import EXT_KINDS, Volume, volumes_of


def recovered(source: BlockSource) -> tuple[BlockSource, tuple[str, ...]]:
    """Give the disk with every journal replayed, in memory over it, and what messages call the volumes that had one.

    Raises:
        DiskError: as :func:`recover` does.
    """
    if not _to_recover(source):
        return source, ()
    disk = EditedDisk(source)
    return disk, recover(disk)


def recover(disk: EditedDisk) -> tuple[str, ...]:
    """Replay every journal that needs it; give what messages call the volumes.

    Raises:
        UnsupportedError: a journal that the system needs has a form that is not replayed; named.
        DamagedError: a journal that the system needs, or the partition table, is damaged.
    """
    replayed, errors = [], []
    for volume in _to_recover(disk):
        from tpu_image.disks.ext4.replay import replay

        offset = volume.source.offset if isinstance(volume.source, Section) else 0
        try:
            replay(EditedSection(disk, offset, volume.source.size, volume.source.name))
        except DiskError as error:
            errors.append(error)
        else:
            replayed.append(volume.called)
    if errors:
        try:
            open_tree(disk)
        except DiskError:
            raise errors[0] from None
    return tuple(replayed)


def _to_recover(source: BlockSource) -> list[Volume]:
    return [
        volume
        for volume in volumes_of(source, read_partition_table(source))
        if volume.kind in EXT_KINDS and _needs_recovery(volume)
    ]


def _needs_recovery(volume: Volume) -> bool:
    from tpu_image.disks.ext4.superblock import read_superblock

    try:
        return read_superblock(volume.source, allow_unclean=True).needs_recovery
    except DiskError:
        return False  # who wants its files will say what is wrong
