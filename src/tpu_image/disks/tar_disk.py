"""The disk inside Compute Engine's image archive: ``disk.raw``, first file of a gzip'd tar."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from tpu_image.disks.errors import DamagedError, UnsupportedError
from tpu_image.disks.gzip_stream import GzipStream
from tpu_image.disks.source import BlockSource, Extent, ExtentKind
from tpu_image.disks.tar_header import HeaderReader, Member, Part

DISK_NAME = "disk.raw"
"""Name of the disk in the archive (Compute Engine, "Import boot disk images manually")."""


class TarDiskSource(BlockSource):
    """A disk stored in a gzip'd tar archive, read where it lies. It owns the archive's file."""

    unit = 1024 * 1024

    def __init__(self, file: BlockSource, stream: GzipStream, member: Member) -> None:
        super().__init__(file.name, member.size, "tar.gz")
        self.member = member
        self._file = file
        self._stream = stream
        whole: tuple[Part, ...] = ((0, member.size),) if member.size else ()
        self._parts = whole if member.parts is None else member.parts
        self._starts = [offset for offset, _ in self._parts]
        self._stored = stored_offsets(member.data, self._parts)

    def _read(self, offset: int, length: int) -> bytes:
        pieces = []
        for start, end, stored in self._pieces(offset, offset + length):
            if stored is None:
                pieces.append(bytes(end - start))
                continue
            data = self._stream.read_at(stored, end - start)
            if len(data) < end - start:
                raise DamagedError(f"{DISK_NAME} ends early in the archive (cut short?)", self.name)
            pieces.append(data)
        return b"".join(pieces)

    def _extents(self, start: int, end: int) -> Iterator[Extent]:
        for first, stop, stored in self._pieces(start, end):
            yield Extent(first, stop - first, ExtentKind.ZERO if stored is None else ExtentKind.COMPRESSED)

    def _pieces(self, start: int, end: int) -> Iterator[tuple[int, int, int | None]]:
        """Cut a range at the stored parts: first byte, end, and place in the archive (None: hole)."""
        index = max(0, bisect_right(self._starts, start) - 1)
        while start < end:
            if index >= len(self._parts):
                yield start, end, None
                return
            offset, length = self._parts[index]
            if start < offset:
                stop = min(end, offset)
                yield start, stop, None
                start = stop
            elif start < offset + length:
                stop = min(end, offset + length)
                yield start, stop, self._stored[index] + start - offset
                start = stop
            else:
                index += 1

    def close(self) -> None:
        """Close the archive."""
        self._file.close()


def stored_offsets(data: int, parts: tuple[Part, ...]) -> list[int]:
    """Give where each part's bytes start in the archive: one behind the other from ``data`` on."""
    offsets = []
    for _, length in parts:
        offsets.append(data)
        data += length
    return offsets


def open_tar_disk(file: BlockSource) -> TarDiskSource:
    """Find the disk in a gzip'd tar.

    Raises:
        UnsupportedError: what is compressed is no tar, or its first file is not the disk.
        DamagedError: the gzip or tar data is malformed.
    """
    stream = GzipStream(file)
    block = stream.read_at(0, 512)
    if block[257:262] != b"ustar" and not block.rstrip(b"\0"):
        raise UnsupportedError("the gzip data is no tar archive", file.name, REPACK)
    try:
        member = HeaderReader(stream.read_at, file.name).first_file()
    except DamagedError:
        if block[257:262] == b"ustar":
            raise
        raise UnsupportedError("the gzip data is no tar archive", file.name, REPACK) from None
    if member is None:
        raise UnsupportedError(f"the archive holds no file, and no {DISK_NAME}", file.name, REPACK)
    if member.name.removeprefix("./") != DISK_NAME:
        raise UnsupportedError(
            f"the archive's first file is {member.name!r}, not {DISK_NAME!r}", file.name, REPACK
        )
    return TarDiskSource(file, stream, member)


REPACK = f"decompress it, name the disk {DISK_NAME} and pack it with: tar --format=oldgnu -Sczf"
