"""A disk with changes laid over it: nothing is written to the base, and no second copy of it is made.

An edit of a disk image is a few hundred blocks. They are held in memory over the base; checks read through them,
and the writer streams the base with them in place.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from tpu_image.disks.errors import UnsupportedError
from tpu_image.disks.source import BlockSource, Extent, ExtentKind, Section

PAGE = 4096
"""Bytes in which changes are kept: the largest ext4 block, and a multiple of every sector size."""

CHANGE_LIMIT = 128 * 1024 * 1024
"""Bytes of changes that are held at most; an edit beyond that wants a copy of the disk instead."""

HOLES_LIMIT = 4_000_000
"""Pieces of free space that are kept, 16 bytes each."""


class EditedDisk(BlockSource):
    """A base and what was written over it; bytes beyond the base's end are zero until written."""

    def __init__(self, base: BlockSource, size: int | None = None) -> None:
        super().__init__(base.name, base.size if size is None else size, base.container)
        self.base = base
        self.unit = max(base.unit, PAGE)
        self._pages: dict[int, bytearray] = {}
        self._order: list[int] | None = []
        self._hole_starts, self._hole_ends = array("Q"), array("Q")

    @property
    def changed_bytes(self) -> int:
        """Bytes that are held over the base."""
        return len(self._pages) * PAGE

    def changed_units(self, size: int) -> list[int]:
        """Number the units of ``size`` bytes, a multiple of :data:`PAGE`, that hold a change, in order."""
        return sorted({page * PAGE // size for page in self._pages})

    def write_at(self, offset: int, data: bytes) -> None:
        """Lay bytes over the disk from ``offset``.

        Raises:
            ValueError: they do not lie within the disk.
            UnsupportedError: more than :data:`CHANGE_LIMIT` bytes are changed.
        """
        if offset < 0 or offset + len(data) > self.size:
            raise ValueError(f"bytes {offset} to {offset + len(data)} are not on a disk of {self.size}")
        done = 0
        while done < len(data):
            page, within = divmod(offset + done, PAGE)
            step = min(PAGE - within, len(data) - done)
            self._page(page)[within : within + step] = data[done : done + step]
            done += step
        if self.changed_bytes > CHANGE_LIMIT:
            raise UnsupportedError(
                f"more than {CHANGE_LIMIT >> 20} MiB of changes", self.name, "add large files at first boot"
            )

    def _page(self, number: int) -> bytearray:
        """The page as it is held for changing."""
        held = self._pages.get(number)
        if held is None:
            start = number * PAGE
            length = min(PAGE, self.size - start)
            held = self._pages[number] = bytearray(self._read(start, length).ljust(PAGE, b"\0"))
            self._order = None
        return held

    def discard(self, ranges: Iterable[tuple[int, int]]) -> None:
        """Make parts read as zero: what a file system holds in free blocks is of no use to anybody.

        Args:
            ranges: offset and length in bytes of parts that were not written to, in order and apart; they are
                shrunk to whole pages. They take the place of those of an earlier call.

        Raises:
            ValueError: they are out of order.
            UnsupportedError: there are more than :data:`HOLES_LIMIT`.
        """
        starts, ends = array("Q"), array("Q")
        for offset, length in ranges:
            start, end = -(-offset // PAGE) * PAGE, (offset + length) // PAGE * PAGE
            if start >= end:
                continue
            if ends and start < ends[-1]:
                raise ValueError(f"the part at byte {start} is out of order")
            if len(starts) == HOLES_LIMIT:
                raise UnsupportedError(
                    f"its free space is in more than {HOLES_LIMIT} pieces", self.name, "defragment it"
                )
            starts.append(start)
            ends.append(end)
        self._hole_starts, self._hole_ends = starts, ends

    def _read(self, offset: int, length: int) -> bytes:
        end = offset + length
        stored = max(0, min(end, self.base.size) - offset)
        data = self.base.read_at(offset, stored) if stored else b""
        holes, pages = self._holes_in(offset, end), self._pages_in(offset, end)
        if not holes and not pages and stored == length:
            return data
        merged = bytearray(data.ljust(length, b"\0"))
        for hole in holes:
            low, high = max(offset, self._hole_starts[hole]), min(end, self._hole_ends[hole])
            merged[low - offset : high - offset] = bytes(high - low)
        for page in pages:
            start = page * PAGE
            low, high = max(offset, start), min(end, start + PAGE)
            merged[low - offset : high - offset] = self._pages[page][low - start : high - start]
        return bytes(merged)

    def stored_deflate(self, offset: int) -> bytes | None:
        """Give a unit of the base as it is stored, where nothing of it was changed or discarded."""
        end = offset + self.base.unit
        if end > self.base.size or self._pages_in(offset, end) or self._holes_in(offset, end):
            return None
        return self.base.stored_deflate(offset)

    def _pages_in(self, start: int, end: int) -> list[int]:
        """Changed pages that the part touches, in order."""
        if self._order is None:
            self._order = sorted(self._pages)
        order = self._order
        return order[bisect_left(order, start // PAGE) : bisect_left(order, -(-end // PAGE))]

    def _holes_in(self, start: int, end: int) -> range:
        """Numbers of the holes that the part touches, in order."""
        return range(bisect_right(self._hole_ends, start), bisect_left(self._hole_starts, end))

    def _extents(self, start: int, end: int) -> Iterator[Extent]:
        position = start
        for page in self._pages_in(start, end):
            low, high = max(start, page * PAGE), min(end, (page + 1) * PAGE)
            yield from self._unchanged_extents(position, low)
            yield Extent(low, high - low, ExtentKind.DATA)
            position = high
        yield from self._unchanged_extents(position, end)

    def _unchanged_extents(self, start: int, end: int) -> Iterator[Extent]:
        position = start
        for hole in self._holes_in(start, end) if start < end else ():
            low, high = max(start, self._hole_starts[hole]), min(end, self._hole_ends[hole])
            yield from self._base_extents(position, low)
            yield Extent(low, high - low, ExtentKind.ZERO)
            position = high
        yield from self._base_extents(position, end)

    def _base_extents(self, start: int, end: int) -> Iterator[Extent]:
        stored = min(end, self.base.size)
        if start < stored:
            yield from self.base.extents(start, stored)
        if max(start, stored) < end:
            yield Extent(max(start, stored), end - max(start, stored), ExtentKind.ZERO)


class EditedSection(Section):
    """A part of an edited disk, such as a partition, that can be written to."""

    def __init__(self, disk: EditedDisk, offset: int, size: int, name: str) -> None:
        super().__init__(disk, offset, size, name)
        self._disk = disk

    def write_at(self, offset: int, data: bytes) -> None:
        """Lay bytes over the part, as :meth:`EditedDisk.write_at` does."""
        if offset < 0 or offset + len(data) > self.size:
            raise ValueError(f"bytes {offset} to {offset + len(data)} are not on a part of {self.size}")
        self._disk.write_at(self.offset + offset, data)
