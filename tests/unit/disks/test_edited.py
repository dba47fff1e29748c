"""A disk with changes over it behaves as a plain one that was written to."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.pages import PAGE
from tpu_image.disks.source import BlockSource, Extent, ExtentKind

SIZE = 10 * PAGE


class Memory(BlockSource):
    """A base in memory whose zero pages are holes."""

    def __init__(self, data: bytes) -> None:
        super().__init__("memory", len(data), "raw")
        self.data = data

    def _read(self, offset: int, length: int) -> bytes:
        return self.data[offset : offset + length]

    def _extents(self, start: int, end: int) -> Iterator[Extent]:
        for low in range(start, end, PAGE):
            high = min(end, low + PAGE)
            kind = ExtentKind.DATA if any(self.data[low:high]) else ExtentKind.ZERO
            yield Extent(low, high - low, kind)


offsets = st.integers(0, SIZE - 1)
writes = st.tuples(st.just("write"), offsets, st.binary(min_size=1, max_size=3 * PAGE))
discards = st.tuples(st.just("discard"), offsets, st.integers(1, 4 * PAGE))


def in_order(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The pages that lie in one of the ranges, each a range."""
    return [
        (page, PAGE)
        for page in range(0, SIZE, PAGE)
        if any(offset <= page and page + PAGE <= offset + length for offset, length in ranges)
    ]


def test_holes_out_of_order_are_refused() -> None:
    with pytest.raises(ValueError, match="out of order"):
        EditedDisk(Memory(bytes(SIZE))).discard([(PAGE, PAGE), (0, PAGE)])


@given(
    pages=st.lists(st.booleans(), min_size=6, max_size=10),
    discarded=st.lists(discards, max_size=3),
    written=st.lists(writes, max_size=6),
    part=st.tuples(offsets, st.integers(1, SIZE)),
)
def test_reads_and_extents_are_those_of_a_plain_disk(
    pages: list[bool],
    discarded: list[tuple[str, int, int]],
    written: list[tuple[str, int, bytes]],
    part: tuple[int, int],
) -> None:
    base = b"".join((b"x" if page else b"\0") * PAGE for page in pages)
    plain = bytearray(base.ljust(SIZE, b"\0"))
    disk = EditedDisk(Memory(base), SIZE)
    for _, offset, length in discarded:
        low, high = -(-offset // PAGE) * PAGE, min(SIZE, offset + length) // PAGE * PAGE
        if low < high:
            plain[low:high] = bytes(high - low)
    disk.discard(in_order([(offset, min(length, SIZE - offset)) for _, offset, length in discarded]))
    for _, offset, data in written:
        data = data[: SIZE - offset]
        plain[offset : offset + len(data)] = data
        disk.write_at(offset, data)
    assert disk.read_at(0, SIZE) == plain
    start, end = part[0], min(SIZE, part[0] + part[1])
    assert disk.read_at(start, end - start) == plain[start:end]
    extents = list(disk.extents(start, end))
    assert sum(extent.length for extent in extents) == end - start
    for extent in extents:
        if extent.kind is ExtentKind.ZERO:
            assert not any(plain[extent.offset : extent.end])


def test_the_base_is_never_written() -> None:
    base = Memory(b"a" * SIZE)
    EditedDisk(base).write_at(5, b"change")
    assert base.data == b"a" * SIZE


def test_a_write_beyond_the_end_is_refused() -> None:
    with pytest.raises(ValueError, match="not on a disk"):
        EditedDisk(Memory(bytes(SIZE))).write_at(SIZE - 1, b"ab")
