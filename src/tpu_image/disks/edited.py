"""A disk with changes laid over it: nothing is written to the base, and no second copy of it is made.

An edit of a disk image is a few hundred blocks. They are held in memory over the base; checks read through them,
and the writer streams the base with them in place.
"""

from __future__ import annotations

from collections.abc import Iterator

from tpu_image.disks.errors import UnsupportedError
from tpu_image.disks.source import BlockSource, Extent, ExtentKind

PAGE = 4096
"""Bytes in which changes are kept: the largest ext4 block, and a multiple of every sector size."""

CHANGE_LIMIT = 512 * 1024 * 1024
"""Bytes of changes that are held at most; an edit beyond that wants a copy of the disk instead."""


class EditedDisk(BlockSource):
    """A base and what was written over it; bytes beyond the base's end are zero until written."""

    def __init__(self, base: BlockSource, size: int | None = None) -> None:
        super().__init__(base.name, base.size if size is None else size, base.container)
        self.base = base
        self.unit = max(base.unit, PAGE)
        self._pages: dict[int, bytearray] = {}
        self._discarded: set[int] = set()

    @property
    def changed_bytes(self) -> int:
        """Bytes that are held over the base."""
        return len(self._pages) * PAGE

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
            held = self._pages.get(page)
            if held is None:
                held = self._pages[page] = bytearray(self._base_page(page))
            held[within : within + step] = data[done : done + step]
            done += step
        if self.changed_bytes > CHANGE_LIMIT:
            raise UnsupportedError(
                f"more than {CHANGE_LIMIT >> 20} MiB of changes", self.name, "add large files at first boot"
            )

    def discard(self, offset: int, length: int) -> None:
        """Make whole pages read as zero: what a file system holds there is of no use to anybody."""
        first, last = -(-offset // PAGE), (offset + length) // PAGE
        for page in range(first, last):
            self._pages.pop(page, None)
            self._discarded.add(page)

    def _base_page(self, page: int) -> bytes:
        start = page * PAGE
        if page in self._discarded or start >= self.base.size:
            return bytes(PAGE)
        length = min(PAGE, self.base.size - start)
        return self.base.read_at(start, length) + bytes(PAGE - length)

    def _read(self, offset: int, length: int) -> bytes:
        end = offset + length
        stored = max(0, min(end, self.base.size) - offset)
        data = self.base.read_at(offset, stored) if stored else b""
        changed = self._touched(offset, end)
        if not changed and stored == length:
            return data
        merged = bytearray(data)
        merged.extend(bytes(length - stored))
        for page in changed:
            held = self._pages.get(page) or bytes(PAGE)
            start = page * PAGE
            low, high = max(offset, start), min(end, start + PAGE)
            merged[low - offset : high - offset] = held[low - start : high - start]
        return bytes(merged)

    def _touched(self, start: int, end: int) -> list[int]:
        """Pages of the part that differ from the base, by whichever of the two sets is the smaller to search."""
        first, last = start // PAGE, -(-end // PAGE)
        if last - first <= len(self._pages) + len(self._discarded):
            return [p for p in range(first, last) if p in self._pages or p in self._discarded]
        return sorted(p for p in {*self._pages, *self._discarded} if first <= p < last)

    def _extents(self, start: int, end: int) -> Iterator[Extent]:
        position = start
        for page in self._touched(start, end):
            low, high = max(start, page * PAGE), min(end, (page + 1) * PAGE)
            yield from self._base_extents(position, low)
            kind = ExtentKind.DATA if page in self._pages else ExtentKind.ZERO
            yield Extent(low, high - low, kind)
            position = high
        yield from self._base_extents(position, end)

    def _base_extents(self, start: int, end: int) -> Iterator[Extent]:
        stored = min(end, self.base.size)
        if start < stored:
            yield from self.base.extents(start, stored)
        if max(start, stored) < end:
            yield Extent(max(start, stored), end - max(start, stored), ExtentKind.ZERO)
