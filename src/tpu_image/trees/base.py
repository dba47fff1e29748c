"""The file tree that every reading of the catalogue works on.

A path in a tree is absolute, POSIX, and means the tree's own root: ``/etc/fstab`` is never the host's.
Symbolic links are resolved here, textually and clamped at the tree's root as chroot(2) does, so that no
link can lead outside whatever kind of tree it is in. The kinds implement three primitives on paths
that hold no link, and must refuse to follow one should a path change under their feet.
"""

from __future__ import annotations

import enum
import fnmatch
import posixpath
from abc import ABC, abstractmethod
from dataclasses import dataclass

READ_LIMIT = 16 * 1024 * 1024
"""Bytes that :meth:`Tree.read_bytes` takes at most: no configuration file is larger."""

LINK_LIMIT = 40
"""Symbolic links followed in one resolution, as in Linux (``MAXSYMLINKS``, include/linux/namei.h)."""


class TreeError(Exception):
    """A path of a tree cannot be used as asked: ``path`` says which, ``reason`` why."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class NotFoundError(TreeError):
    """Nothing is at the path."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "does not exist")


class NotAFileError(TreeError):
    """Something other than a regular file is at the path."""


class NotReadableError(TreeError):
    """The file exists and cannot be read: permission, input/output error."""


class TooLargeError(TreeError):
    """The file is larger than the limit of the read."""


class LinkLoopError(TreeError):
    """More than :data:`LINK_LIMIT` symbolic links stand on the way."""

    def __init__(self, path: str) -> None:
        super().__init__(path, "too many levels of symbolic links")


class Kind(enum.Enum):
    """What a path is, named as stat(1) names it."""

    FILE = "regular file"
    DIRECTORY = "directory"
    SYMLINK = "symbolic link"
    CHARACTER_DEVICE = "character special file"
    BLOCK_DEVICE = "block special file"
    FIFO = "fifo"
    SOCKET = "socket"


@dataclass(frozen=True)
class Entry:
    """What lstat(2) tells of a path: ``mode`` is the permission bits (0o7777) alone, ``size`` is in bytes."""

    kind: Kind
    mode: int
    uid: int = 0
    gid: int = 0
    size: int = 0
    target: str = ""

    @property
    def executable(self) -> bool:
        """Whether it is a regular file that its owner may execute."""
        return self.kind is Kind.FILE and bool(self.mode & 0o100)


def normalise(path: str) -> str:
    """Give the absolute form of a tree path: ``etc//x/../y`` becomes ``/etc/y`` (no link is looked at)."""
    return posixpath.normpath("/" + path.lstrip("/"))


class Tree(ABC):
    """Files below one root, for reading."""

    def __init__(self) -> None:
        self._resolved_directories: dict[str, str] = {"/": "/"}

    @abstractmethod
    def lstat_canonical(self, path: str) -> Entry | None:
        """Describe the entry at a path whose parents hold no link; None where nothing is."""

    @abstractmethod
    def read_canonical(self, path: str, limit: int) -> bytes:
        """Read the regular file at a path that holds no link; raise a :class:`TreeError` otherwise."""

    @abstractmethod
    def list_canonical(self, path: str) -> list[str]:
        """Names in the directory at a path that holds no link, unsorted; empty where there is none."""

    def resolve(self, path: str, *, follow_last: bool = True) -> str:
        """Give the path without links that ``path`` means; parts that do not exist are kept as they are.

        Raises:
            LinkLoopError: more than :data:`LINK_LIMIT` links stand on the way.
        """
        head, name = posixpath.split(normalise_keeping_parents(path))
        if not follow_last and name not in ("", ".", ".."):
            parent = self.resolve(head)
            return posixpath.join(parent, name)
        return self._resolve_all(path)

    def _resolve_all(self, path: str) -> str:
        todo = [part for part in path.split("/") if part not in ("", ".")][::-1]
        done = "/"
        links = 0
        while todo:
            part = todo.pop()
            if part == "..":
                done = posixpath.dirname(done)
                continue
            candidate = posixpath.join(done, part)
            if candidate in self._resolved_directories:
                done = self._resolved_directories[candidate]
                continue
            entry = self.lstat_canonical(candidate)
            if entry is not None and entry.kind is Kind.SYMLINK:
                links += 1
                if links > LINK_LIMIT:
                    raise LinkLoopError(path)
                if entry.target.startswith("/"):
                    done = "/"
                todo.extend(p for p in reversed(entry.target.split("/")) if p not in ("", "."))
                continue
            if entry is not None and entry.kind is Kind.DIRECTORY:
                self._resolved_directories[candidate] = candidate
            done = candidate
        return done

    def lstat(self, path: str) -> Entry | None:
        """Describe the entry at the path itself, be it a link; None where nothing is."""
        return self.lstat_canonical(self.resolve(path, follow_last=False))

    def stat(self, path: str) -> Entry | None:
        """Describe what the path leads to; None where nothing is or the link dangles."""
        entry = self.lstat_canonical(self.resolve(path))
        return None if entry is None or entry.kind is Kind.SYMLINK else entry

    def exists(self, path: str) -> bool:
        """Whether the path leads to anything."""
        return self.stat(path) is not None

    def is_file(self, path: str) -> bool:
        """Whether the path leads to a regular file."""
        entry = self.stat(path)
        return entry is not None and entry.kind is Kind.FILE

    def is_directory(self, path: str) -> bool:
        """Whether the path leads to a directory."""
        entry = self.stat(path)
        return entry is not None and entry.kind is Kind.DIRECTORY

    def read_bytes(self, path: str, limit: int = READ_LIMIT) -> bytes:
        """Read the file that the path leads to, whole.

        Raises:
            NotFoundError, NotAFileError, NotReadableError, TooLargeError, LinkLoopError: as they say.
        """
        return self.read_canonical(self.resolve(path), limit)

    def read_text(self, path: str, limit: int = READ_LIMIT) -> str:
        """Read a file as UTF-8; bytes that are not come through as surrogates (PEP 383), none lost."""
        return self.read_bytes(path, limit).decode("utf-8", "surrogateescape")

    def read_text_if_present(self, path: str, limit: int = READ_LIMIT) -> str | None:
        """Like :meth:`read_text`, and None where the path leads to nothing."""
        try:
            return self.read_text(path, limit)
        except NotFoundError:
            return None

    def names(self, directory: str, pattern: str = "*") -> list[str]:
        """Names in a directory that match a shell pattern, sorted by code point; empty where it is none."""
        canonical = self.resolve(directory)
        return sorted(n for n in self.list_canonical(canonical) if fnmatch.fnmatchcase(n, pattern))

    def files(self, directory: str, pattern: str = "*") -> list[str]:
        """Paths of the regular files of a directory (links followed) that match, sorted by name."""
        paths = [posixpath.join(directory, name) for name in self.names(directory, pattern)]
        return [path for path in paths if self.is_file(path)]


def normalise_keeping_parents(path: str) -> str:
    """Give the absolute form without ``//``, ``/./`` or a last ``/``; ``..`` stays, since links decide it."""
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))
