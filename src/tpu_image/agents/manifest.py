"""The documents of an image: index, manifest and configuration, of OCI and of Docker.

Sources: OCI image-spec image-index.md, manifest.md, config.md, descriptor.md; Docker "Image Manifest V 2, Schema 2".
They are JSON from outside: every value is asked for its type.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, NamedTuple

from tpu_image.agents.errors import ImageError
from tpu_image.agents.filesystem import quoted

LAYERS_LIMIT = 200
"""Layers of an image; Docker stops at 127."""

NESTING_LIMIT = 4
"""Indexes that name indexes, at most."""

PLATFORM = ("linux", "amd64")
"""What TPU VMs run."""

LAYER_TYPES = (
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.oci.image.layer.v1.tar+zstd",
    "application/vnd.oci.image.layer.nondistributable.v1.tar",
    "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip",
    "application/vnd.oci.image.layer.nondistributable.v1.tar+zstd",
    "application/vnd.docker.image.rootfs.diff.tar",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "application/vnd.docker.image.rootfs.diff.tar.zstd",
)

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Descriptor(NamedTuple):
    """What a document says of a blob: ``digest`` is ``sha256:`` and 64 hexadecimal digits, ``size`` in bytes."""

    digest: str
    size: int
    media_type: str = ""
    platform: tuple[str, str] | None = None
    name: str = ""


class Manifest(NamedTuple):
    """An image of one platform."""

    configuration: Descriptor
    layers: tuple[Descriptor, ...]


class Configuration(NamedTuple):
    """How a container of an image is run, and the digests of its unpacked layers."""

    entrypoint: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    working_directory: str = "/"
    user: str = ""
    layers: tuple[str, ...] = ()


def digest_of(data: bytes) -> str:
    """Give the digest of a document."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def is_digest(text: object) -> bool:
    """Whether a text is a SHA-256 digest as the documents write it."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def parse(data: bytes, where: str, what: str) -> dict[str, Any]:
    """Read a JSON object; ``what`` names the document.

    Raises:
        ImageError: it is none.
    """
    try:
        value = json.loads(data)
        # Halves of characters are no text, and no name of a file.
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise ImageError(f"{what} is no JSON", where) from None
    if not isinstance(value, dict):
        raise ImageError(f"{what} is no JSON object", where)
    return value


def is_index(document: dict[str, Any], where: str) -> bool:
    """Whether a document is an index rather than a manifest; one that is both misleads somebody.

    Raises:
        ImageError: it is both, or of a kind that is not read.
    """
    index, image = isinstance(document.get("manifests"), list), isinstance(document.get("layers"), list)
    if index and image:
        raise ImageError("a document is index and manifest at once", where)
    if document.get("schemaVersion") == 1:
        raise ImageError("the image has Docker's old manifest (schema 1)", where, "push it with a newer tool")
    if not (index or image):
        raise ImageError("a document is neither index nor manifest", where)
    return index


def descriptors(document: dict[str, Any], where: str) -> list[Descriptor]:
    """Read what an index names.

    Raises:
        ImageError: it holds something that is no descriptor.
    """
    return [_descriptor(value, where) for value in document["manifests"][: 10 * LAYERS_LIMIT]]


def for_our_platform(found: list[Descriptor], where: str) -> list[Descriptor]:
    """Choose what TPU VMs run; what names no platform may be it.

    Raises:
        ImageError: there is nothing for it.
    """
    fitting = [d for d in found if d.platform == PLATFORM] or [d for d in found if d.platform is None]
    if not fitting:
        others = ", ".join(sorted({"/".join(d.platform) for d in found if d.platform}))
        raise ImageError(
            f"has nothing for {'/'.join(PLATFORM)}, only for {others or 'nothing'}",
            where,
            "give another image",
        )
    return fitting


def read_manifest(document: dict[str, Any], where: str) -> Manifest:
    """Read the manifest of an image.

    Raises:
        ImageError: it is malformed, or of something other than an image.
    """
    layers = [_descriptor(value, where) for value in document["layers"][: LAYERS_LIMIT + 1]]
    if len(layers) > LAYERS_LIMIT:
        raise ImageError(f"has more than {LAYERS_LIMIT} layers", where)
    for layer in layers:
        if layer.media_type and layer.media_type not in LAYER_TYPES:
            raise ImageError(
                f"has a layer of the type {quoted(layer.media_type)}", where, "give a container image"
            )
    return Manifest(_descriptor(document.get("config"), where), tuple(layers))


def _descriptor(value: Any, where: str) -> Descriptor:
    if not isinstance(value, dict):
        raise ImageError("a descriptor is no object", where)
    digest, size = value.get("digest"), value.get("size")
    if not isinstance(digest, str) or not is_digest(digest):
        raise ImageError(f"the digest {quoted(str(digest)[:80])} is no SHA-256", where)
    if not isinstance(size, int) or size < 0:
        raise ImageError(f"the size of {digest} is no number of bytes", where)
    platform = value.get("platform")
    system = (
        (str(platform.get("os")), str(platform.get("architecture"))) if isinstance(platform, dict) else None
    )
    annotations = value.get("annotations")
    name = annotations.get("org.opencontainers.image.ref.name") if isinstance(annotations, dict) else ""
    return Descriptor(digest, size, str(value.get("mediaType") or ""), system, str(name or ""))


def read_configuration(data: bytes, where: str) -> Configuration:
    """Read the configuration of an image.

    Raises:
        ImageError: it is malformed, or for another platform.
    """
    document = parse(data, where, "its configuration")
    platform = (document.get("os") or "linux", document.get("architecture") or "amd64")
    if platform != PLATFORM:
        shown = "/".join(str(part) for part in platform)
        raise ImageError(
            f"is for {quoted(shown)}, and TPU VMs are {'/'.join(PLATFORM)}", where, "give another image"
        )
    section = document.get("config")
    section = section if isinstance(section, dict) else {}
    system = document.get("rootfs")
    return Configuration(
        _texts(section.get("Entrypoint"), where),
        _texts(section.get("Cmd"), where),
        tuple(e for e in _texts(section.get("Env"), where) if _NAME.fullmatch(e.partition("=")[0])),
        str(section.get("WorkingDir") or "/"),
        str(section.get("User") or ""),
        _texts(system.get("diff_ids") if isinstance(system, dict) else None, where),
    )


def _texts(value: Any, where: str) -> tuple[str, ...]:
    """A list of texts; null is the empty one."""
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) and "\0" not in item for item in value):
        raise ImageError("its configuration has something other than texts in a list", where)
    return tuple(value)
