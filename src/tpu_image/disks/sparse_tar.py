"""The archive that Compute Engine imports: an old-GNU tar whose one member is a sparse ``disk.raw``.

Format: GNU tar manual, "Basic Tar Format" and "Sparse Formats, Old GNU Format" (src/tar.h, ``struct oldgnu_header``,
``struct sparse_header``). The map of what is stored stands before the data: four extents in the header, 21 in
each block behind it. Python's tarfile reads this format and cannot write it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from tpu_image.disks.source import Extent

BLOCK = 512
MEMBER = b"disk.raw"
END = bytes(2 * BLOCK)
"""Two zero blocks end an archive."""

EXTENTS_IN_HEADER = 4
EXTENTS_IN_BLOCK = 21

_HEADER = struct.Struct("100s8s8s8s12s12s8sc100s8s32s32s8s8s12s12s12s4sx96ss12s17x")


def number(value: int, width: int) -> bytes:
    """A number field: octal digits and a NUL, or GNU's base 256 where those do not hold it (8 GiB in 12)."""
    digits = b"%0*o\0" % (width - 1, value)
    return digits if len(digits) == width else b"\x80" + value.to_bytes(width - 1, "big")


def header(stored: Sequence[Extent], size: int, modified: int) -> bytes:
    """The header blocks of ``disk.raw``: ``size`` bytes of which the ``stored`` extents follow.

    Args:
        stored: extents in order, offsets and lengths whole multiples of 512.
        size: bytes of the disk.
        modified: the member's time, seconds since 1970.
    """
    # As GNU tar does, a disk that ends in a hole has an empty extent at its end, which gives its size.
    extents = [(extent.offset, extent.length) for extent in stored]
    if not extents or sum(extents[-1]) < size:
        extents.append((size, 0))
    first, rest = extents[:EXTENTS_IN_HEADER], extents[EXTENTS_IN_HEADER:]
    fields = (
        MEMBER,
        number(0o644, 8),
        number(0, 8),
        number(0, 8),
        number(sum(length for _, length in extents), 12),
        number(modified, 12),
        b" " * 8,
        b"S",
        b"",
        b"ustar  \0",
        b"root",
        b"root",
        b"",
        b"",
        b"",
        b"",
        b"",
        b"",
        _map(first),
        b"\x01" if rest else b"\0",
        number(size, 12),
    )
    block = _HEADER.pack(*fields)
    checksum = b"%06o\0 " % sum(block)
    blocks = [block[:148] + checksum + block[156:]]
    for start in range(0, len(rest), EXTENTS_IN_BLOCK):
        more = b"\x01" if start + EXTENTS_IN_BLOCK < len(rest) else b"\0"
        entries = _map(rest[start : start + EXTENTS_IN_BLOCK])
        blocks.append(entries.ljust(EXTENTS_IN_BLOCK * 24, b"\0") + more.ljust(8, b"\0"))
    return b"".join(blocks)


def _map(extents: Sequence[tuple[int, int]]) -> bytes:
    return b"".join(number(offset, 12) + number(length, 12) for offset, length in extents)


def pieces(stored: Sequence[Extent], unit: int) -> Iterator[list[Extent]]:
    """Group the stored extents into lists of about ``unit`` bytes, so that small ones share a piece of work.

    A piece ends at a multiple of ``unit`` on the disk, so that a reader which decodes such units decodes each once.
    """
    group: list[Extent] = []
    held = 0
    for extent in stored:
        position = extent.offset
        while position < extent.end:
            boundary = (position // unit + 1) * unit
            end = min(extent.end, boundary)
            group.append(Extent(position, end - position, extent.kind))
            held += end - position
            position = end
            if held >= unit or (position == boundary and held >= unit // 2):
                yield group
                group, held = [], 0
    if group:
        yield group
