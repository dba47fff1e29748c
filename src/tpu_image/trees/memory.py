"""A tree held in memory: what a plan wants written, and small trees in tests."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tpu_image.trees.base import Entry, Kind, NotAFileError, NotFoundError, TooLargeError, Tree, normalise


class File(NamedTuple):
    """A regular file: its whole content, permission bits and owner."""

    content: bytes
    mode: int = 0o644
    uid: int = 0
    gid: int = 0


class Directory(NamedTuple):
    """A directory's own permission bits and owner."""

    mode: int = 0o755
    uid: int = 0
    gid: int = 0


class Symlink(NamedTuple):
    """A symbolic link and where it points, as written."""

    target: str
    uid: int = 0
    gid: int = 0


Node = File | Directory | Symlink
"""Everything that a change can leave at a path."""


def entry_of(node: Node) -> Entry:
    """Describe a node as lstat(2) would."""
    if isinstance(node, File):
        return Entry(Kind.FILE, node.mode, node.uid, node.gid, size=len(node.content))
    if isinstance(node, Directory):
        return Entry(Kind.DIRECTORY, node.mode, node.uid, node.gid)
    size = len(node.target.encode("utf-8", "surrogateescape"))
    return Entry(Kind.SYMLINK, 0o777, node.uid, node.gid, size, node.target)


def content_of(node: Node | None, path: str, limit: int) -> bytes:
    """Give the content of the file that stands at a path; None is nothing there.

    Raises:
        NotFoundError, NotAFileError, TooLargeError: as they say.
    """
    if node is None:
        raise NotFoundError(path)
    if not isinstance(node, File):
        raise NotAFileError(path, f"is a {entry_of(node).kind.value}, not a regular file")
    if len(node.content) > limit:
        raise TooLargeError(path, f"is larger than {limit} bytes")
    return node.content


class MemoryTree(Tree):
    """Nodes by canonical path; directories on the way to a node exist by themselves."""

    def __init__(self, nodes: Mapping[str, Node] | None = None) -> None:
        super().__init__()
        self._nodes: dict[str, Node] = {"/": Directory()}
        for path, node in (nodes or {}).items():
            self.put(path, node)

    def put(self, path: str, node: Node) -> None:
        """Place a node at a path, with the directories above it.

        Raises:
            NotAFileError: the path leads through a file or link, or the node would hide what is below it.
        """
        path = normalise(path)
        hides = isinstance(self._nodes.get(path), Directory) and not isinstance(node, Directory)
        if hides and self.list_canonical(path):
            raise NotAFileError(path, "is a directory that is not empty")
        missing = []
        parent = posixpath.dirname(path)
        while parent not in self._nodes:
            missing.append(parent)
            parent = posixpath.dirname(parent)
        if not isinstance(self._nodes[parent], Directory):
            raise NotAFileError(parent, f"is a {entry_of(self._nodes[parent]).kind.value}, not a directory")
        self._nodes.update(dict.fromkeys(reversed(missing), Directory()))
        self._nodes[path] = node
        self.derived.clear()
        self._resolved_directories = {"/"}

    def nodes(self) -> Iterator[tuple[str, Node]]:
        """Every canonical path and what is there, the root included, in the order of placing."""
        yield from self._nodes.items()

    def lstat_canonical(self, path: str) -> Entry | None:
        """Describe the node at the path."""
        node = self._nodes.get(path)
        return None if node is None else entry_of(node)

    def read_canonical(self, path: str, limit: int) -> bytes:
        """Give the content of the file at the path."""
        return content_of(self._nodes.get(path), path, limit)

    def list_canonical(self, path: str) -> list[str]:
        """Names directly below the path."""
        return [posixpath.basename(p) for p in self._nodes if p != "/" and posixpath.dirname(p) == path]
