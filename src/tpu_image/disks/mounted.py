"""Several trees joined into one, as mounting joins file systems."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from tpu_image.trees.base import Entry, Kind, NotAFileError, NotFoundError, Tree, TreeError


class MountedTree(Tree):
    """Trees by mount point, ``/`` among them. A link may lead from one into another."""

    def __init__(self, trees: Mapping[str, Tree]) -> None:
        super().__init__()
        self._trees: dict[str, Tree] = {}
        for path, tree in trees.items():
            self.mount(path, tree)

    def mount(self, path: str, tree: Tree) -> None:
        """Put a tree at a path without links; what was there before is hidden."""
        self._trees[path] = tree
        self._trees = dict(sorted(self._trees.items(), key=lambda item: -len(item[0])))
        self._resolved_directories = {"/"}

    def locate(self, path: str) -> tuple[str, str]:
        """Give the mount point that a path without links is below, and the path within its tree."""
        for mount in self._trees:
            if path == mount:
                return mount, "/"
            if path.startswith(mount if mount == "/" else mount + "/"):
                return mount, path if mount == "/" else path[len(mount) :]
        raise NotFoundError(path)

    def lstat_canonical(self, path: str) -> Entry | None:
        """Describe what the tree at the path has there."""
        mount, inner = self.locate(path)
        try:
            return self._trees[mount].lstat_canonical(inner)
        except TreeError as error:
            raise placed(error, path) from None

    def read_canonical(self, path: str, limit: int) -> bytes:
        """Read the file from the tree that the path is in."""
        mount, inner = self.locate(path)
        try:
            return self._trees[mount].read_canonical(inner, limit)
        except TreeError as error:
            raise placed(error, path) from None

    def list_canonical(self, path: str) -> list[str]:
        """Names in the directory, with the mount points below it."""
        mount, inner = self.locate(path)
        try:
            names = self._trees[mount].list_canonical(inner)
        except TreeError as error:
            raise placed(error, path) from None
        here = {
            posixpath.basename(point) for point in self._trees if posixpath.dirname(point) == path != point
        }
        return [*names, *here.difference(names)]


class DeviceTree(Tree):
    """Links to block devices, as udev makes them below /dev."""

    def __init__(self, links: Mapping[str, str]) -> None:
        super().__init__()
        self._entries = {"/": Entry(Kind.DIRECTORY, 0o755)}
        for path, device in links.items():
            depth = path.count("/") - 1
            target = "../" * depth + device
            self._put(path, Entry(Kind.SYMLINK, 0o777, size=len(target), target=target))
            self._put(f"/{device}", Entry(Kind.BLOCK_DEVICE, 0o660))

    def _put(self, path: str, entry: Entry) -> None:
        self._entries[path] = entry
        parent = posixpath.dirname(path)
        while parent != "/":
            self._entries[parent] = Entry(Kind.DIRECTORY, 0o755)
            parent = posixpath.dirname(parent)

    def lstat_canonical(self, path: str) -> Entry | None:
        """Describe the link or device."""
        return self._entries.get(path)

    def read_canonical(self, path: str, limit: int) -> bytes:  # noqa: ARG002 - the base class has it
        """Refuse: nothing here is a file."""
        if path not in self._entries:
            raise NotFoundError(path)
        raise NotAFileError(path, f"is a {self._entries[path].kind.value}, not a regular file")

    def list_canonical(self, path: str) -> list[str]:
        """Names directly below the path."""
        return [
            posixpath.basename(known) for known in self._entries if posixpath.dirname(known) == path != known
        ]


def placed(error: TreeError, path: str) -> TreeError:
    """Have an error of one tree speak of the path in the whole."""
    error.path = path
    error.args = (f"{path}: {error.reason}",)
    return error
