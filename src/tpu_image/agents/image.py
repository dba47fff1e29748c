"""A container image that is at hand: its documents read and verified, its layers to be unpacked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tpu_image.agents import compression, layers, manifest
from tpu_image.agents.errors import ImageError
from tpu_image.agents.filesystem import RootFileSystem, quoted
from tpu_image.agents.layers import Stretch
from tpu_image.agents.manifest import Configuration, Descriptor
from tpu_image.agents.spool import Spool
from tpu_image.agents.stores import Store

BLOB_LIMIT = 4 * 1024 * 1024 * 1024
"""Bytes of a layer as it is stored."""

OnProgress = Callable[[str, int, int], None]
"""Is told what is being done, and how many of how many bytes of it are; a total of 0 is not known."""


@dataclass(frozen=True)
class Layer:
    """A layer as it is stored; ``plain`` says that the digest is of its content without compression."""

    name: str
    digest: str
    size: int
    plain: bool = False


@dataclass(frozen=True)
class ContainerImage:
    """An image of one platform.

    Attributes:
        reference: the name it is known by; empty where it has none.
        digest: of its manifest; of its configuration where an archive of Docker's has no manifest.
        identity: digest of its configuration, which Docker calls the image's ID.
        configuration: how it is run.
        document: the configuration as it is stored.
        layers: the lowest first.
        store: where they are.
    """

    reference: str
    digest: str
    identity: str
    configuration: Configuration
    document: bytes
    layers: tuple[Layer, ...]
    store: Store

    @property
    def where(self) -> str:
        """As messages name it."""
        return self.store.where

    def blob(self, layer: Layer) -> Iterator[bytes]:
        """Read a layer as it is stored, held against its digest at the end.

        Raises:
            ImageError: it is not what its digest says.
        """
        chunks = self.store.chunks(layer.name)
        return chunks if layer.plain else verified(chunks, layer.digest, layer.size, self.where)

    def plain(self, layer: Layer) -> Iterator[bytes]:
        """Read a layer as a tar, held against its digest at the end.

        Raises:
            ImageError: it does not decode or is not what its digest says.
        """
        chunks = compression.plain(self.blob(layer), f"{self.where}: layer {layer.digest[:19]}")
        return verified(chunks, layer.digest, None, self.where) if layer.plain else chunks

    def unpack(self, spool: Spool, progress: OnProgress | None = None) -> RootFileSystem:
        """Lay the layers over one another; progress counts bytes that are unpacked.

        Raises:
            ImageError: a layer is damaged or refused.
        """
        stretches: list[Stretch] = []
        for layer in self.layers:
            where = f"{self.where}: layer {layer.digest[:19]}"
            chunks = counted(self.plain(layer), sum(one.length for one in stretches), progress)
            stretches.append(Stretch(*spool.append(chunks, where), where))
        return layers.lay_over(spool, stretches)


def counted(chunks: Iterator[bytes], done: int, progress: OnProgress | None) -> Iterator[bytes]:
    """Give pieces as they are, telling how much has come, counted from ``done`` on."""
    for chunk in chunks:
        done += len(chunk)
        if progress is not None:
            progress("unpacking", done, 0)
        yield chunk


def verified(chunks: Iterator[bytes], digest: str, size: int | None, where: str) -> Iterator[bytes]:
    """Give the pieces of a blob, and an error behind the last one where they are not what was promised.

    Raises:
        ImageError: the size or the SHA-256 differs.
    """
    total, found = 0, hashlib.sha256()
    limit = BLOB_LIMIT if size is None else min(size, BLOB_LIMIT)
    for chunk in chunks:
        total += len(chunk)
        if size is not None and total > limit:
            raise ImageError(f"the blob {digest} has more than the {limit} bytes it is said to have", where)
        found.update(chunk)
        yield chunk
    if size is not None and total != size:
        raise ImageError(
            f"the blob {digest} has {total} bytes and should have {size}: it is cut short", where
        )
    if f"sha256:{found.hexdigest()}" != digest:
        raise ImageError(f"the blob {digest} has the SHA-256 {found.hexdigest()}", where)


def blob_name(digest: str) -> str:
    """Where a layout keeps a blob (image-spec image-layout.md)."""
    return "blobs/" + digest.replace(":", "/")


def read_layout(store: Store, wanted: str, *, default: str = "") -> ContainerImage:
    """Read an OCI layout: ``index.json`` and blobs by digest.

    Args:
        store: a directory or archive that holds one.
        wanted: name, tag or digest of the image; empty where there is only one.
        default: the name to be preferred where there are several and none is wanted.

    Raises:
        ImageError: it is malformed, blobs are missing or wrong, or it holds no such image.
    """
    where = store.where
    index = manifest.parse(store.document("index.json"), where, "index.json")
    if not manifest.is_index(index, where):
        raise ImageError("index.json is no index", where)
    found = manifest.descriptors(index, where)
    chosen = _chosen(found, wanted, default, where)
    reference = wanted or chosen.name
    for _ in range(manifest.NESTING_LIMIT):
        document = manifest.parse(_document(store, chosen), where, "a manifest")
        if not manifest.is_index(document, where):
            break
        chosen = manifest.for_our_platform(manifest.descriptors(document, where), where)[0]
    else:
        raise ImageError("has indexes that name indexes without end", where)
    contents = manifest.read_manifest(document, where)
    described = _document(store, contents.configuration)
    configuration = manifest.read_configuration(described, where)
    parts = tuple(Layer(blob_name(d.digest), d.digest, d.size) for d in contents.layers)
    return ContainerImage(
        reference, chosen.digest, contents.configuration.digest, configuration, described, parts, store
    )


def _document(store: Store, descriptor: Descriptor) -> bytes:
    if not store.has(blob_name(descriptor.digest)):
        raise ImageError(f"has no blob {descriptor.digest}", store.where)
    data = store.document(blob_name(descriptor.digest))
    return b"".join(verified(iter([data]), descriptor.digest, descriptor.size, store.where))


def _chosen(found: list[Descriptor], wanted: str, default: str, where: str) -> Descriptor:
    if wanted:
        named = [d for d in found if wanted in (d.name, d.digest)]
    else:
        named = [d for d in found if default and d.name == default] or found
    if not named:
        names = ", ".join(quoted(d.name or d.digest) for d in found) or "nothing"
        raise ImageError(f"holds {names}, and no {quoted(wanted)}", where, "name one of them behind a colon")
    if len(named) > 1:
        named = manifest.for_our_platform(named, where)
    if len(named) > 1:
        names = ", ".join(quoted(d.name or d.digest) for d in named)
        raise ImageError(f"holds several images: {names}", where, "name one of them behind a colon")
    return named[0]


def read_docker_archive(store: Store, wanted: str, *, default: str = "") -> ContainerImage:
    """Read an archive of ``docker save``: ``manifest.json``, which names configuration and layers.

    Args:
        store: the archive.
        wanted: a name of the image; empty where there is only one.
        default: the name to be preferred where there are several and none is wanted.

    Raises:
        ImageError: it is malformed, parts are missing or wrong, or it holds no such image.
    """
    where = store.where
    item, reference = _item(store, wanted, default)
    described = store.document(_text(item.get("Config"), where))
    configuration = manifest.read_configuration(described, where)
    names = item.get("Layers")
    names = names if isinstance(names, list) else []
    if len(names) != len(configuration.layers) or len(names) > manifest.LAYERS_LIMIT:
        raise ImageError(
            f"manifest.json names {len(names)} layers, the configuration {len(configuration.layers)}", where
        )
    for digest in configuration.layers:
        if not manifest.is_digest(digest):
            raise ImageError(f"the digest {quoted(digest[:80])} is no SHA-256", where)
    parts = tuple(
        Layer(name, digest, store.size(name), plain=True)
        for name, digest in zip([_text(n, where) for n in names], configuration.layers, strict=True)
    )
    identity = manifest.digest_of(described)
    return ContainerImage(reference, identity, identity, configuration, described, parts, store)


def _item(store: Store, wanted: str, default: str) -> tuple[dict[str, object], str]:
    where = store.where
    listed = manifest.parse(b'{"images": %s}' % store.document("manifest.json"), where, "manifest.json")[
        "images"
    ]
    items = [item for item in listed if isinstance(item, dict)] if isinstance(listed, list) else []
    names = [[str(tag) for tag in tags] if isinstance(tags := i.get("RepoTags"), list) else [] for i in items]
    for choice in filter(None, (wanted, default)):
        for item, tags in zip(items, names, strict=True):
            if choice in tags:
                return item, choice
    shown = ", ".join(quoted(tag) for tags in names for tag in tags) or "nothing with a name"
    if wanted or not items:
        raise ImageError(f"holds {shown}, and no {quoted(wanted)}", where, "name one of them behind a colon")
    if len(items) > 1:
        raise ImageError(f"holds several images: {shown}", where, "name one of them behind a colon")
    return items[0], next(iter(names[0]), "")


def _text(value: object, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise ImageError("manifest.json names no file where it should", where)
    return value
