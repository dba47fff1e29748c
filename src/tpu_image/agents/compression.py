"""Layers and archives as they are stored: plain, gzip or zstd, told by how they begin."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, cast

from tpu_image.agents.errors import AgentError, ImageError
from tpu_image.agents.spool import CHUNK

if TYPE_CHECKING:
    import zlib

GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"

ZSTD_WINDOW_LIMIT = 128 * 1024 * 1024
"""Bytes of history a zstd frame may ask for: what zstd(1) itself takes without ``--long``."""

PIECE = 16 * 1024
"""Bytes that the gzip decoder is given at once."""

MEMBERS_LIMIT = 1000
MEMBER_SIZE = 512
"""Members of a gzip stream, and bytes for each further one: eStargz has one for each file, with its tar header."""


def plain(chunks: Iterable[bytes], where: str) -> Iterator[bytes]:
    """Give the bytes behind a compression, at most :data:`CHUNK` at a time.

    Raises:
        ImageError: they do not decode, or end early; ``where`` names what holds them.
        AgentError: zstd is needed and not installed.
    """
    source = iter(chunks)
    first = b""
    while len(first) < len(ZSTD) and (chunk := next(source, b"")):
        first += chunk
    if first.startswith(GZIP):
        return _gunzipped(first, source, where)
    if first.startswith(ZSTD):
        return _unzstd(first, source, where)
    return _joined(first, source)


def _joined(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest


def _gunzipped(first: bytes, rest: Iterator[bytes], where: str) -> Iterator[bytes]:
    """Decode gzip members one after another (RFC 1952); zeros behind the last are padding."""
    from isal import isal_zlib

    damaged = cast("type[zlib.error]", isal_zlib.error)
    decoder = isal_zlib.decompressobj(wbits=31)
    members, total = 1, 0
    try:
        for data in _pieces(_joined(first, rest)):
            while data:
                if decoder.eof:
                    data = data.lstrip(b"\0")
                    if not data:
                        break
                    decoder = isal_zlib.decompressobj(wbits=31)
                    members += 1
                    if members > MEMBERS_LIMIT + total // MEMBER_SIZE:
                        raise ImageError(
                            "its gzip data is in too many members with too little in them", where
                        )
                produced = decoder.decompress(data, CHUNK)
                total += len(produced)
                yield produced
                while not decoder.eof and (more := decoder.unconsumed_tail):
                    produced = decoder.decompress(more, CHUNK)
                    total += len(produced)
                    yield produced
                data = decoder.unused_data if decoder.eof else b""
    except damaged as error:
        raise ImageError(f"its gzip data is damaged: {error}", where) from None
    if not decoder.eof:
        raise ImageError("its gzip data ends early", where)


def _pieces(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Cut chunks into small pieces: behind each gzip member the decoder copies what is left of one."""
    for chunk in chunks:
        for start in range(0, len(chunk), PIECE):
            yield chunk[start : start + PIECE]


class _Reader:
    """Chunks as a file that is read from."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._held = b""

    def read(self, size: int = -1) -> bytes:
        """Read what is at hand, at most ``size`` bytes."""
        while not self._held:
            chunk = next(self._chunks, None)
            if chunk is None:
                return b""
            self._held = chunk
        if size < 0:
            size = len(self._held)
        data, self._held = self._held[:size], self._held[size:]
        return data


def _unzstd(first: bytes, rest: Iterator[bytes], where: str) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError:
        raise AgentError(
            "is compressed with zstd and no decoder is installed",
            where,
            "install the Python package zstandard",
        ) from None
    decoder = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_LIMIT)
    source = cast("IO[bytes]", _Reader(_joined(first, rest)))
    try:
        with decoder.stream_reader(source, read_across_frames=True) as reader:
            while chunk := reader.read(CHUNK):
                yield chunk
    except zstandard.ZstdError as error:
        raise ImageError(f"its zstd data is damaged: {error}", where) from None
