"""From what a user names to an image that is at hand: registry, archive, layout or directory."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from tpu_image.agents.errors import AgentError
from tpu_image.agents.filesystem import Directory, File, Link, RootFileSystem, quoted
from tpu_image.agents.image import ContainerImage, OnProgress, counted, read_docker_archive, read_layout
from tpu_image.agents.layers import DEPTH_LIMIT, ENTRIES_LIMIT
from tpu_image.agents.references import Reference, parse_reference
from tpu_image.agents.registry import Options, pull
from tpu_image.agents.spool import CHUNK, Spool
from tpu_image.agents.stores import ArchiveStore, DirectoryStore, Store
from tpu_image.trees.directory import READ_FLAGS, open_root, reason_of

FORMS = ("docker", "docker-archive", "oci", "oci-archive")
"""What may stand before a colon, as skopeo and podman spell it."""

_GIVE = "give REGISTRY/PATH:TAG, an archive, an OCI layout or a directory"


class UnpackedDirectory:
    """A root file system that somebody has unpacked: it has no digest, and does not say how it is run."""

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._path = path

    def unpack(self, spool: Spool, progress: OnProgress | None = None) -> RootFileSystem:
        """Copy it into a spool; links are kept as they are and not followed.

        Raises:
            AgentError: something in it cannot be read, or it is too large.
        """
        filesystem = RootFileSystem(spool)
        try:
            root = open_root(self._path, os.O_RDONLY)
            try:
                _Copy(filesystem, self.where, progress).directory(root, filesystem.root, 0)
            finally:
                os.close(root)
        except OSError as error:
            raise AgentError(
                f"cannot be read: {reason_of(error)}", self.where, "run it as who may"
            ) from error
        return filesystem


class _Copy:
    """A directory of this machine being taken into a root file system."""

    def __init__(self, filesystem: RootFileSystem, where: str, progress: OnProgress | None) -> None:
        self._filesystem = filesystem
        self._where = where
        self._progress = progress
        self._count = 0
        self._known: dict[tuple[int, int], File] = {}

    def directory(self, descriptor: int, node: Directory, depth: int) -> None:
        """Take over a directory's own attributes and all that is in it."""
        if depth > DEPTH_LIMIT:
            raise AgentError("has directories inside one another without end", self._where, _GIVE)
        status = os.fstat(descriptor)
        node.mode, node.uid, node.gid = stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid
        node.mtime = int(status.st_mtime)
        for name in sorted(os.listdir(descriptor)):
            self._count += 1
            if self._count > ENTRIES_LIMIT:
                raise AgentError(
                    f"has more than {ENTRIES_LIMIT} entries", self._where, "give a smaller image"
                )
            self._entry(descriptor, name, node, depth)

    def _entry(self, parent: int, name: str, node: Directory, depth: int) -> None:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            target = os.readlink(name, dir_fd=parent)
            node.children[name] = Link(target, status.st_uid, status.st_gid)
        elif stat.S_ISDIR(status.st_mode):
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(name, flags, dir_fd=parent)
            try:
                child = node.children[name] = Directory()
                self.directory(descriptor, child, depth + 1)
            finally:
                os.close(descriptor)
        elif stat.S_ISREG(status.st_mode):
            descriptor = os.open(name, READ_FLAGS, dir_fd=parent)
            try:
                node.children[name] = self._file(descriptor)
            finally:
                os.close(descriptor)
        else:
            self._filesystem.left_out.append(f"special file {quoted(name)}")

    def _file(self, descriptor: int) -> File:
        status = os.fstat(descriptor)
        known = self._known.get((status.st_dev, status.st_ino))
        if known is not None:
            return known
        spool = self._filesystem.spool
        chunks = iter(lambda: os.read(descriptor, CHUNK), b"")
        offset, size = spool.append(counted(chunks, spool.size, self._progress), self._where)
        capability = b""
        with contextlib.suppress(OSError):
            capability = os.getxattr(descriptor, "security.capability")
        file = File(
            stat.S_IMODE(status.st_mode),
            status.st_uid,
            status.st_gid,
            int(status.st_mtime),
            offset,
            size,
            capability,
        )
        if status.st_nlink > 1:
            self._known[status.st_dev, status.st_ino] = file
        return file


@contextlib.contextmanager
def opened(
    source: str, spool: Spool, options: Options | None = None, *, default: str = ""
) -> Iterator[ContainerImage | UnpackedDirectory]:
    """Have at hand what a user names.

    Args:
        source: ``REGISTRY/PATH:TAG``, the path of an archive, layout or directory; before any of them, with a
            colon, one of :data:`FORMS`; behind an archive or layout, with a colon, which of its images.
        spool: takes what an archive holds.
        options: how registries are asked.
        default: name of the image to be preferred in an archive of several.

    Raises:
        AgentError: nothing of that name is there, or it is none of these.
        ImageError: it is, and cannot be used.
    """
    form, path, wanted = _split(source)
    if form == "docker":
        image = pull(_reference(path), options or Options())
        with contextlib.closing(image.store):
            yield image
        return
    if form == "directory":
        yield UnpackedDirectory(Path(path))
        return
    with contextlib.closing(_store(Path(path), spool)) as store:
        yield _image(store, form, wanted, default)


def _reference(text: str) -> Reference:
    return parse_reference(text.removeprefix("//"))


def _split(source: str) -> tuple[str, str, str]:
    """Tell what a source is: its form, its path, and the image that is wanted of it."""
    form, colon, rest = source.partition(":")
    if colon and form in FORMS:
        if form == "docker":
            return form, rest, ""
        path, wanted = _divided(rest)
        return form, path, wanted
    path, wanted = _divided(source)
    if Path(path).is_dir():
        is_layout = (Path(path) / "index.json").is_file()
        return ("oci" if is_layout else "directory"), path, wanted
    if Path(path).exists():
        return "archive", path, wanted
    if source.startswith(("/", "./", "../")) or source.endswith((".tar", ".tar.gz", ".tgz", ".tar.zst")):
        raise AgentError("does not exist", source, _GIVE)
    return "docker", source, ""


def _divided(text: str) -> tuple[str, str]:
    """Split ``PATH:NAME`` where PATH exists; a path may have colons too."""
    if Path(text).exists():
        return text, ""
    place = text.find(":")
    while place > 0:
        if Path(text[:place]).exists():
            return text[:place], text[place + 1 :]
        place = text.find(":", place + 1)
    return text, ""


def _store(path: Path, spool: Spool) -> Store:
    if path.is_dir():
        return DirectoryStore(path)
    if path.exists() and not path.is_file():
        raise AgentError("is neither file nor directory", str(path), _GIVE)
    return ArchiveStore(path, spool)


def _image(store: Store, form: str, wanted: str, default: str) -> ContainerImage:
    # docker save writes both since version 25; its own list has the names.
    has_names = form != "oci-archive" and store.has("manifest.json")
    if form.startswith("oci") or (form == "archive" and store.has("index.json") and not has_names):
        return read_layout(store, wanted, default=default)
    if has_names:
        return read_docker_archive(store, wanted, default=default)
    raise AgentError("holds neither a Docker archive nor an OCI layout", store.where, _GIVE)
