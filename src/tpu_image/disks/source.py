"""A disk's bytes, whatever container they are stored in.

Two readers share this: checks, which read a few thousand places at random, and the writer, which streams the
whole disk once from several threads. So every source is safe to read from any thread, says which parts are
zero without reading them, and names the ``unit`` whose multiples are decoded without waste.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import NamedTuple

from tpu_image.disks.errors import DamagedError


class ExtentKind(enum.Enum):
    """What stands behind a part of a disk."""

    DATA = "data"
    ZERO = "zero"
    """Reads as zero bytes; nothing is stored for it."""
    COMPRESSED = "compressed"


class Extent(NamedTuple):
    """A part of a disk, ``offset`` and ``length`` in bytes."""

    offset: int
    length: int
    kind: ExtentKind

    @property
    def end(self) -> int:
        """Offset of the first byte behind it."""
        return self.offset + self.length


class BlockSource(ABC):
    """A disk of ``size`` bytes, for reading.

    Attributes:
        name: what messages call it: a path, or a part of one.
        size: bytes.
        container: the container's name: ``raw``, ``qcow2``, ``tar.gz``.
        unit: bytes that are stored and decoded together; reads of whole units cost least.
        files: device and inode of every file that the disk is stored in; empty where it was not opened as a file.
    """

    unit = 4096
    files: frozenset[tuple[int, int]] = frozenset()

    def __init__(self, name: str, size: int, container: str) -> None:
        self.name = name
        self.size = size
        self.container = container

    @abstractmethod
    def _read(self, offset: int, length: int) -> bytes:
        """Read a part that is known to lie within the disk."""

    @abstractmethod
    def _extents(self, start: int, end: int) -> Iterator[Extent]:
        """Describe a part that is known to lie within the disk, in order and without gaps."""

    def read_at(self, offset: int, length: int) -> bytes:
        """Read exactly ``length`` bytes from ``offset``; any thread may.

        Raises:
            DamagedError: the part is not all on the disk, or what is stored for it is damaged.
        """
        if offset < 0 or length < 0 or offset + length > self.size:
            raise DamagedError(
                f"bytes {offset} to {offset + length} are wanted of a disk of {self.size}", self.name
            )
        return self._read(offset, length) if length else b""

    def extents(self, start: int = 0, end: int | None = None) -> Iterator[Extent]:
        """Describe the disk from ``start`` to ``end`` (by default its own): adjoining, kinds alternating."""
        end = self.size if end is None else min(end, self.size)
        return joined(self._extents(start, end)) if start < end else iter(())

    def stored_deflate(self, offset: int) -> bytes | None:
        """Give the unit at ``offset`` as it is stored, where that is raw deflate (RFC 1951); any thread may.

        The bytes may end too early or too late: who uses them decodes them and sees.
        """
        del offset
        return None

    def close(self) -> None:  # noqa: B027 - most sources own nothing
        """Let go of files and memory; a second time does nothing."""

    def __enter__(self) -> BlockSource:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Section(BlockSource):
    """A part of another source, such as a partition; closing it leaves the other open."""

    def __init__(self, source: BlockSource, offset: int, size: int, name: str = "") -> None:
        if offset < 0 or size < 0 or offset + size > source.size:
            raise DamagedError(
                f"ends at byte {offset + size}, beyond the disk's {source.size}", name or source.name
            )
        super().__init__(name or source.name, size, source.container)
        self.source = source
        self.offset = offset
        self.unit = source.unit

    def _read(self, offset: int, length: int) -> bytes:
        return self.source.read_at(self.offset + offset, length)

    def _extents(self, start: int, end: int) -> Iterator[Extent]:
        for extent in self.source.extents(self.offset + start, self.offset + end):
            yield Extent(extent.offset - self.offset, extent.length, extent.kind)


def joined(extents: Iterable[Extent]) -> Iterator[Extent]:
    """Merge neighbours of one kind."""
    last: Extent | None = None
    for extent in extents:
        if last is not None and last.kind is extent.kind and last.end == extent.offset:
            last = Extent(last.offset, last.length + extent.length, last.kind)
            continue
        if last is not None:
            yield last
        last = extent
    if last is not None:
        yield last
