"""What Docker and podman keep in a tree: images by name, and containers that the daemon starts by itself.

Sources: Docker's ``image/DRIVER/repositories.json`` and ``imagedb`` (moby ``image/store.go``,
``reference/store.go``), ``containers/ID/config.v2.json`` and ``hostconfig.json``; containerd's metadata file,
in which Docker 29 and newer keep names; podman's ``overlay-images/images.json``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from tpu_image.trees.base import NotFoundError, Tree

DOCKER = "/var/lib/docker"
PODMAN_IMAGES = "/var/lib/containers/storage/overlay-images/images.json"
CONTAINERD_NAMES = "/var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db"
RESTARTED = ("always", "unless-stopped")
"""Restart policies with which the daemon starts a container at boot."""

JSON_LIMIT = 4 * 1024 * 1024
"""Bytes of one of these files at most."""


class Image(NamedTuple):
    """An image that is there, with its own entry point and arguments where they are known."""

    reference: str
    path: str
    entrypoint: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


class Container(NamedTuple):
    """A container of Docker."""

    name: str
    image: str
    path: str
    command: tuple[str, ...]
    privileged: bool
    host_network: bool
    restarted: bool


def familiar(reference: str) -> str:
    """Give a reference as Docker lists it: with a tag, without what stands for Docker Hub."""
    for prefix in ("docker.io/library/", "docker.io/", "localhost/"):
        if reference.startswith(prefix):
            reference = reference.removeprefix(prefix)
            break
    name = reference.rpartition("/")[2]
    return reference if ":" in name or "@" in name else f"{reference}:latest"


def images(tree: Tree) -> Iterator[Image]:
    """Every image of Docker's and podman's store, once for each of its names."""
    for driver in tree.names(f"{DOCKER}/image"):
        path = f"{DOCKER}/image/{driver}/repositories.json"
        for names in _object(_json(tree, path), "Repositories").values():
            for reference, digest in _items(names):
                settings = _settings(tree, driver, str(digest))
                entrypoint, arguments = (_strings(settings.get(key)) for key in ("Entrypoint", "Cmd"))
                yield Image(reference, path, entrypoint, arguments)
    stored = _json(tree, PODMAN_IMAGES)
    for image in stored if isinstance(stored, list) else ():
        names = image.get("names") if isinstance(image, dict) else None
        for name in names if isinstance(names, list) else ():
            yield Image(familiar(str(name)), PODMAN_IMAGES)


def find_image(tree: Tree, reference: str) -> Image | None:
    """Look up the image that a reference names in a store of the tree."""
    wanted = familiar(reference)
    for image in images(tree):
        if image.reference == wanted:
            return image
    if is_in_containerd(tree, wanted):
        return Image(wanted, CONTAINERD_NAMES)
    return None


def containers(tree: Tree) -> Iterator[Container]:
    """Every container of Docker."""
    for identifier in tree.names(f"{DOCKER}/containers"):
        path = f"{DOCKER}/containers/{identifier}/config.v2.json"
        config = _json(tree, path)
        if not isinstance(config, dict):
            continue
        host = _object({"": _json(tree, f"{DOCKER}/containers/{identifier}/hostconfig.json")}, "")
        yield Container(
            name=str(config.get("Name", identifier)).lstrip("/"),
            image=str(_object(config, "Config").get("Image", "")),
            path=path,
            command=(str(config.get("Path", "")), *_strings(config.get("Args"))),
            privileged=host.get("Privileged") is True,
            host_network=host.get("NetworkMode") == "host",
            restarted=_object(host, "RestartPolicy").get("Name") in RESTARTED,
        )


def _settings(tree: Tree, driver: str, digest: str) -> dict[str, Any]:
    kind, _, value = digest.partition(":")
    if not (kind.isalnum() and value.isalnum()):
        return {}
    return _object(_json(tree, f"{DOCKER}/image/{driver}/imagedb/content/{kind}/{value}"), "config")


def full_name(reference: str) -> str:
    """Give a reference with its registry, as containerd stores it."""
    host, slash, _ = reference.partition("/")
    if slash and ("." in host or ":" in host or host == "localhost"):
        return reference
    return f"docker.io/{reference}" if slash else f"docker.io/library/{reference}"


def is_in_containerd(tree: Tree, reference: str) -> bool:
    """Whether containerd's file holds the name; the file is a database, in which names are readable."""
    try:
        return full_name(reference).encode("utf-8", "surrogateescape") in tree.read_bytes(CONTAINERD_NAMES)
    except NotFoundError:
        return False


def _json(tree: Tree, path: str) -> Any:
    """Read a JSON file; None where there is none or it is no JSON, which is of no use to Docker either."""
    import json

    try:
        return json.loads(tree.read_bytes(path, JSON_LIMIT))
    except (NotFoundError, ValueError, RecursionError):
        return None


def _object(value: Any, key: str) -> dict[str, Any]:
    """Give the object that is a member of another; an empty one where it is none."""
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def _items(value: Any) -> list[tuple[str, Any]]:
    return list(value.items()) if isinstance(value, dict) else []


def _strings(value: Any) -> tuple[str, ...]:
    return tuple(str(item) for item in value) if isinstance(value, list) else ()
