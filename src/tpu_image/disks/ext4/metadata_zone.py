"""The blocks that describe an ext4 itself, which no file may hold and no edit may give away.

Linux keeps the same list (``ext4_setup_system_zone``, fs/ext4/block_validity.c).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from tpu_image.disks.ext4.bitmaps import Bitmaps
from tpu_image.disks.ext4.filesystem import Ext4FileSystem


class MetadataZone:
    """Superblock and descriptors with their copies, bitmaps and inode tables of all groups."""

    def __init__(self, filesystem: Ext4FileSystem, bitmaps: Bitmaps) -> None:
        """Read where everything is.

        Raises:
            DamagedError: a part lies outside the file system or over another.
        """
        groups = range(filesystem.superblock.groups)
        areas = sorted(area for group in groups for area in bitmaps.metadata_areas(group) if area[1])
        self._starts = [first for first, _ in areas]
        self._ends = [first + length for first, length in areas]
        end = 0
        for first, length in areas:
            filesystem.check_blocks(first, length)
            if first < end:
                raise filesystem.damaged(f"two descriptions of block groups share block {first}")
            end = first + length

    def touches(self, first: int, count: int) -> bool:
        """Whether one of ``count`` blocks from ``first`` is in the zone."""
        index = bisect_right(self._ends, first)
        return index < len(self._starts) and self._starts[index] < first + count

    def bits(self, first: int, count: int) -> int:
        """Give the blocks in the zone among ``count`` from ``first`` as a bitmap."""
        bitmap = 0
        for index in range(bisect_right(self._ends, first), bisect_left(self._starts, first + count)):
            start = max(self._starts[index], first)
            stop = min(self._ends[index], first + count)
            bitmap |= ((1 << (stop - start)) - 1) << (start - first)
        return bitmap
