"""Decoding one bounded piece of raw deflate or zstd data, with the fastest decoder that is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

from tpu_image.disks.errors import UnsupportedError

ZSTD_WINDOW_LIMIT = 8 * 1024 * 1024
"""Bytes of history a zstd frame may ask for: four times the largest qcow2 cluster."""

Decoder = Callable[[bytes, int], bytes]
"""Takes encoded bytes and how many the result has at most; ValueError where they cannot be decoded."""


class _Decompressor(Protocol):
    """What zlib's and ISA-L's decompression objects have in common."""

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


def deflate_decoder() -> Decoder:
    """Give a decoder of raw deflate (RFC 1951): ISA-L's where python-isal is installed, zlib's otherwise."""
    import zlib

    failures = [zlib.error]
    start: Callable[[int], _Decompressor] = zlib.decompressobj
    try:
        from isal import isal_zlib
    except ImportError:
        pass
    else:
        start = isal_zlib.decompressobj
        failures.append(cast("type[zlib.error]", isal_zlib.error))

    def decode(data: bytes, limit: int) -> bytes:
        try:
            return start(-15).decompress(data, limit)
        except tuple(failures) as error:
            raise ValueError(str(error)) from None

    return decode


def zstd_decoder(where: str) -> Decoder:
    """Give a decoder of zstd frames (RFC 8878).

    Raises:
        UnsupportedError: no zstd module is installed; ``where`` names the image that needs one.
    """
    try:
        import zstandard
    except ImportError:
        raise UnsupportedError(
            "clusters are compressed with zstd and no decoder is installed",
            where,
            "install the Python package zstandard, or convert with: qemu-img convert -O qcow2",
        ) from None

    def decode(data: bytes, limit: int) -> bytes:
        decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_LIMIT)
        try:
            return decompressor.stream_reader(data).read(limit)
        except zstandard.ZstdError as error:
            raise ValueError(str(error)) from None

    return decode
