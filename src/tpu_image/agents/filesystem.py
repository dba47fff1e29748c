"""The files of an image once its layers lie over one another: a tree of its own, in which links are only text.

No path in it leads through a link, so that whatever is written from it stays below where it is written.
"""

from __future__ import annotations

import posixpath
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field

from tpu_image.agents.spool import Spool

LINK_LIMIT = 40
"""Links that :meth:`RootFileSystem.find` follows at most, as Linux does (``MAXSYMLINKS``)."""


@dataclass
class File:
    """A regular file: where its bytes are in the spool. Hard links to it are the same object under more names."""

    mode: int
    uid: int
    gid: int
    mtime: int
    offset: int
    size: int
    capability: bytes = b""


@dataclass
class Link:
    """A symbolic link, as written."""

    target: str
    uid: int
    gid: int


@dataclass
class Directory:
    """A directory and what is in it, by name."""

    mode: int = 0o755
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    children: dict[str, Node] = field(default_factory=dict)


Node = File | Link | Directory


@dataclass
class RootFileSystem:
    """What an agent sees as its ``/``; ``left_out`` says what the image has and this does not."""

    spool: Spool
    root: Directory = field(default_factory=Directory)
    left_out: list[str] = field(default_factory=list)

    def find(self, path: str) -> tuple[str, Node] | None:
        """Follow a path as chroot(2) would: the path without links, and what is there; None where nothing is."""
        todo = [part for part in path.split("/") if part][::-1]
        done: list[str] = []
        links = 0
        while todo:
            part = todo.pop()
            if part == "..":
                done = done[:-1]
            if part in (".", ".."):
                continue
            here = self._at(done)
            node = here.children.get(part) if isinstance(here, Directory) else None
            if node is None:
                return None
            if isinstance(node, Link):
                links += 1
                if links > LINK_LIMIT:
                    return None
                todo.extend(reversed([step for step in node.target.split("/") if step]))
                done = [] if node.target.startswith("/") else done
                continue
            done.append(part)
        found = self._at(done)
        return None if found is None else ("/" + "/".join(done), found)

    def _at(self, parts: list[str]) -> Node | None:
        node: Node = self.root
        for part in parts:
            if not isinstance(node, Directory) or part not in node.children:
                return None
            node = node.children[part]
        return node

    def is_program(self, path: str) -> bool:
        """Whether a path leads to a regular file that may be executed."""
        found = self.find(path)
        return found is not None and isinstance(found[1], File) and bool(found[1].mode & 0o111)

    def program(self, name: str, search_path: str) -> str:
        """Find a program as execvp(3) does in ``PATH``; empty where there is none."""
        paths = [name] if "/" in name else [posixpath.join(d, name) for d in search_path.split(":") if d]
        return next((posixpath.join("/", path) for path in paths if self.is_program(path)), "")

    def text(self, path: str, limit: int) -> str:
        """Read a file as text; empty where there is none, or one of more than ``limit`` bytes."""
        found = self.find(path)
        if found is None or not isinstance(found[1], File) or found[1].size > limit:
            return ""
        return self.spool.read(found[1].offset, found[1].size).decode("utf-8", "surrogateescape")

    def provide_directory(self, path: str) -> None:
        """Have a directory at a path, unless something else is on the way."""
        node = self.root
        for part in path.split("/"):
            if not part:
                continue
            child = node.children.setdefault(part, Directory())
            if not isinstance(child, Directory):
                return
            node = child

    def provide_file(self, path: str) -> None:
        """Have a file at a path, an empty one where none is: a link there would lead to nothing."""
        folder, name = posixpath.split(path)
        self.provide_directory(folder)
        found = self.find(folder)
        if found is None or not isinstance(found[1], Directory):
            return
        if not isinstance(found[1].children.get(name), File):
            found[1].children[name] = File(0o644, 0, 0, 0, 0, 0)


def walk(node: Node, path: str = "") -> Iterator[tuple[str, Node]]:
    """Every path below a node and what is there, the node itself first, each directory before what is in it."""
    stack = [(path, node)]
    while stack:
        path, node = stack.pop()
        yield path, node
        if isinstance(node, Directory):
            stack += [
                (f"{path}/{name}", child) for name, child in sorted(node.children.items(), reverse=True)
            ]


def quoted(name: str) -> str:
    """A name of an image as it is shown in a message."""
    return shlex.quote(name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace"))
