"""Writing an image as ``docker load`` takes it, of every version of Docker: layers by ID, ``manifest.json``.

Source: moby ``image/tarexport``. Layers stay gzip'd where they are, which every Docker loads; zstd is not known to
those of Debian 12 and Ubuntu 22.04, so such layers are decoded.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from typing import NamedTuple

from tpu_image.agents import compression
from tpu_image.agents.image import ContainerImage, Layer
from tpu_image.agents.spool import Spool

_BLOCK = 512


class _Stored(NamedTuple):
    """A layer that is ready to be put into the archive: its name there and where its bytes are."""

    name: str
    offset: int
    size: int


def write(image: ContainerImage, names: list[str], spool: Spool) -> tuple[int, int]:
    """Write an archive of an image into a spool; give its offset and length in bytes.

    Raises:
        ImageError: a layer is damaged.
    """
    stored = [_stored(image, layer, number, spool) for number, layer in enumerate(image.layers)]
    return spool.append(_archive(image, names, stored, spool), image.where)


def _stored(image: ContainerImage, layer: Layer, number: int, spool: Spool) -> _Stored:
    """Have a layer in the spool, verified, as Docker takes it."""
    name = f"{number:03}-{layer.digest.partition(':')[2][:16]}/layer.tar"
    start = next(image.store.chunks(layer.name), b"")[: len(compression.ZSTD)]
    if layer.plain or start == compression.ZSTD:
        return _Stored(name, *spool.append(image.plain(layer), image.where))
    return _Stored(name, *spool.append(image.blob(layer), image.where))


def _archive(image: ContainerImage, names: list[str], stored: list[_Stored], spool: Spool) -> Iterator[bytes]:
    configuration = f"{image.identity.partition(':')[2]}.json"
    described = [{"Config": configuration, "RepoTags": names, "Layers": [layer.name for layer in stored]}]
    yield from _file(configuration, image.document)
    for layer in stored:
        yield _header(layer.name.partition("/")[0], 0, tarfile.DIRTYPE)
        yield _header(layer.name, layer.size)
        yield from spool.chunks(layer.offset, layer.size)
        yield bytes(-layer.size % _BLOCK)
    yield from _file("manifest.json", json.dumps(described).encode())
    yield bytes(2 * _BLOCK)


def _file(name: str, content: bytes) -> Iterator[bytes]:
    yield _header(name, len(content))
    yield content + bytes(-len(content) % _BLOCK)


def _header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """A header without time or owner, so that the archive of an image is always the same."""
    information = tarfile.TarInfo(name)
    information.size, information.type = size, kind
    information.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    return information.tobuf(tarfile.GNU_FORMAT)
