"""Random access into a gzip file without unpacking it to disk.

The decoder's state is copied every so often on the first way through, so that a later read starts at the
nearest copy. One copy is about 40 KiB; their distance doubles as the file turns out longer.
"""

from __future__ import annotations

import threading
import zlib
from typing import TYPE_CHECKING

from tpu_image.disks.cache import BoundedCache
from tpu_image.disks.errors import DamagedError
from tpu_image.disks.source import BlockSource

if TYPE_CHECKING:
    from zlib import _Decompress

FRAME = 1024 * 1024
"""Bytes that are decoded and kept together."""

FRAMES_KEPT = 24 * FRAME
"""Bytes of decoded frames that are kept."""

SNAPSHOTS = 512
"""Copies of the decoder that are kept: about 20 MiB."""

INPUT = 64 * 1024
"""Compressed bytes read at once."""

GZIP = 31
"""zlib's window bits for a gzip member (RFC 1952), whose checksum zlib then verifies at its end."""


class _Decoder:
    """A place in a gzip file: what zlib knows there, and how much of the input was read."""

    def __init__(self, source: BlockSource) -> None:
        self._source = source
        self._inflate: _Decompress = zlib.decompressobj(GZIP)
        self._offset = 0
        self._pending = b""

    def copy(self) -> _Decoder:
        """Give an independent decoder at the same place."""
        twin = _Decoder(self._source)
        twin._inflate = self._inflate.copy()
        twin._offset = self._offset
        twin._pending = self._pending
        return twin

    def decode(self, length: int) -> bytes:
        """Give the next ``length`` decoded bytes, fewer at the end of the last member."""
        parts = []
        while length:
            if self._inflate.eof and not self._next_member():
                break
            data = self._inflate.decompress(self._input(), length)
            self._pending = self._inflate.unconsumed_tail
            parts.append(data)
            length -= len(data)
        return b"".join(parts)

    def _input(self) -> bytes:
        if self._pending:
            return self._pending
        size = min(INPUT, self._source.size - self._offset)
        if not size:
            raise DamagedError("the gzip data ends early (cut short?)", self._source.name)
        self._offset += size
        return self._source.read_at(self._offset - size, size)

    def _next_member(self) -> bool:
        """Go on to a further gzip member if one follows; padding of zeros, as tapes have, is the end."""
        rest = self._inflate.unused_data
        if len(rest) < 2 and self._offset < self._source.size:
            size = min(INPUT, self._source.size - self._offset)
            rest += self._source.read_at(self._offset, size)
            self._offset += size
        if rest[:2] != b"\x1f\x8b":
            return False
        self._inflate = zlib.decompressobj(GZIP)
        self._pending = rest
        return True


class GzipStream:
    """The decoded content of a gzip file, readable at any offset from any thread."""

    def __init__(self, source: BlockSource) -> None:
        self._source = source
        self._frames: BoundedCache[int, bytes] = BoundedCache(FRAMES_KEPT, len)
        self._snapshots: dict[int, _Decoder] = {0: _Decoder(source)}
        self._stride = 1
        self._lock = threading.Lock()

    def read_at(self, offset: int, length: int) -> bytes:
        """Read up to ``length`` bytes from ``offset``, fewer where the content ends.

        Raises:
            DamagedError: the gzip data is damaged or cut short.
        """
        parts = []
        while length:
            index, inside = divmod(offset, FRAME)
            part = self._frame(index)[inside : inside + length]
            if not part:
                break
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return b"".join(parts)

    def _frame(self, index: int) -> bytes:
        frame = self._frames.get(index)
        if frame is not None:
            return frame
        with self._lock:
            frame = self._frames.get(index)
            if frame is not None:
                return frame
            try:
                return self._decode_frame(index)
            except zlib.error as error:
                reason = str(error).rpartition(": ")[2]
                raise DamagedError(f"the gzip data is damaged ({reason})", self._source.name) from None

    def _decode_frame(self, index: int) -> bytes:
        at = max(known for known in self._snapshots if known <= index)
        decoder = self._snapshots[at].copy()
        while True:
            if at not in self._snapshots and at % self._stride == 0:
                self._remember(at, decoder)
            frame = decoder.decode(FRAME)
            self._frames.put(at, frame)
            if at == index or len(frame) < FRAME:
                return frame if at == index else b""
            at += 1

    def _remember(self, at: int, decoder: _Decoder) -> None:
        self._snapshots[at] = decoder.copy()
        if len(self._snapshots) > SNAPSHOTS:
            self._stride *= 2
            self._snapshots = {k: v for k, v in self._snapshots.items() if k % self._stride == 0}
