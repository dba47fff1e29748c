"""A directory of a tree as a tree of its own: what a process sees whose root it is (chroot(2))."""

from __future__ import annotations

import posixpath

from tpu_image.trees.base import Entry, Tree


class Below(Tree):
    """The files below a directory of another tree; absolute links in it lead to places below the directory too."""

    def __init__(self, base: Tree, directory: str) -> None:
        super().__init__()
        self._base = base
        self._directory = base.resolve(directory)

    def _there(self, path: str) -> str:
        return posixpath.join(self._directory, path.lstrip("/")) if path != "/" else self._directory

    def lstat_canonical(self, path: str) -> Entry | None:
        """Describe what the base has at the path."""
        return self._base.lstat_canonical(self._there(path))

    def read_canonical(self, path: str, limit: int) -> bytes:
        """Read the base's file at the path."""
        return self._base.read_canonical(self._there(path), limit)

    def list_canonical(self, path: str) -> list[str]:
        """Names in the base's directory at the path."""
        return self._base.list_canonical(self._there(path))
