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
from collections.abc import Callable
from typing import Concatenate, NamedTuple, ParamSpec, TypeVar, cast

READ_LIMIT = 16 * 1024 * 1024
"""Bytes that :meth:`Tree.read_bytes` takes at most: no configuration file is larger."""

HEAD_LIMIT = 512 * 1024 * 1024
"""Bytes of a file whose head is wanted, in trees that can give it whole alone."""

LINK_LIMIT = 40
"""Symbolic links followed in one resolution, as in Linux (``MAXSYMLINKS``, include/linux/namei.h)."""

PATH_LIMIT = 4096
"""Characters of a path at most, after and between links, as in Linux (``PATH_MAX``, include/uapi/linux/limits.h)."""

NAMES_LIMIT = 200_000
"""Names that one directory may hold: more are refused, so that a hostile image cannot exhaust memory."""


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
    """What is at the path cannot be read: permission, input/output error, changed while being read."""


class TooLargeError(TreeError):
    """The file is larger than the limit of the read, or the directory than :data:`NAMES_LIMIT`."""


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


class Entry(NamedTuple):
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


_STEPS = ("", ".", "..")
"""Parts of a path that name nothing in a directory."""

P = ParamSpec("P")
T = TypeVar("T")


class Fault(NamedTuple):
    """Something wrong with what a tree lies on: ``required`` unless it only may be in the way."""

    what: str
    where: str
    remedy: str
    required: bool = True


class Tree(ABC):
    """Files below one root, for reading."""

    faults: tuple[Fault, ...] | None = None
    """What is wrong with the disk that the files are on; None where they are on no disk that can be seen."""

    def __init__(self) -> None:
        self._resolved_directories: set[str] = {"/"}
        self.derived: dict[object, object] = {}
        """What readers worked out from the tree, by keys of their own; a change of the tree empties it."""

    @abstractmethod
    def lstat_canonical(self, path: str) -> Entry | None:
        """Describe the entry at a path whose parents hold no link; None where nothing is."""

    @abstractmethod
    def read_canonical(self, path: str, limit: int) -> bytes:
        """Read the regular file at a path that holds no link; raise a :class:`TreeError` otherwise."""

    @abstractmethod
    def list_canonical(self, path: str) -> list[str]:
        """Names in the directory at a path that holds no link, unsorted; empty where there is none."""

    def derive(self, make: Callable[Concatenate[Tree, P], T], *arguments: P.args, **options: P.kwargs) -> T:
        """Give what ``make`` works out from the tree: once for all who ask the same, and anew after a change."""
        key = (make, arguments, *options.items()) if arguments or options else make
        if key not in self.derived:
            self.derived[key] = make(self, *arguments, **options)
        return cast("T", self.derived[key])

    def head_canonical(self, path: str, length: int) -> bytes:
        """Read the first bytes of the regular file at a path that holds no link, of whatever size it is."""
        return self.read_canonical(path, HEAD_LIMIT)[:length]

    def resolve(self, path: str, *, follow_last: bool = True) -> str:
        """Give the path without links that ``path`` means; parts that do not exist are kept as they are.

        Raises:
            LinkLoopError: more than :data:`LINK_LIMIT` links stand on the way.
            NotFoundError: ``..`` stands behind something that is no directory, as in ``/missing/../etc``; a
                link or the path is longer than :data:`PATH_LIMIT`.
        """
        if follow_last:
            return self._walk(path)[0]
        head, name = posixpath.split(normalise_keeping_parents(path))
        if name in _STEPS:
            return self._walk(path)[0]
        return posixpath.join(head if head in self._resolved_directories else self._walk(head)[0], name)

    def _walk(self, path: str) -> tuple[str, Entry | None]:
        """Resolve a path; give what is there too, unless it is a directory that was met before."""
        done, _, name = path.rpartition("/")
        if done in self._resolved_directories and name not in _STEPS:
            todo = [name]  # most paths are beside one that was met before
        else:
            todo = [part for part in path.split("/") if part not in ("", ".")][::-1]
            done = "/"
        links = 0
        while todo:
            part = todo.pop()
            if part in (".", ".."):
                done = posixpath.dirname(done) if part == ".." else done
                continue
            candidate = f"{done}/{part}" if done != "/" else f"/{part}"
            if len(candidate) > PATH_LIMIT:
                raise NotFoundError(path)
            if candidate in self._resolved_directories:
                done = candidate
                continue
            entry = self.lstat_canonical(candidate)
            if entry is not None and entry.kind is Kind.DIRECTORY:
                self._resolved_directories.add(candidate)
                done = candidate
            elif entry is not None and entry.kind is Kind.SYMLINK:
                links += 1
                if links > LINK_LIMIT:
                    raise LinkLoopError(path)
                if not 0 < len(entry.target) < PATH_LIMIT:  # Linux makes no such link, and follows none
                    raise NotFoundError(path)
                todo.extend(reversed(link_parts(entry.target)))
                done = "/" if entry.target.startswith("/") else done
            else:
                return self._beyond(candidate, todo, path), None if todo else entry
        return done, None

    def _beyond(self, candidate: str, todo: list[str], path: str) -> str:
        """Keep the parts behind what is no directory: ``todo``, the last one first."""
        if not todo:
            return candidate
        beyond = posixpath.join(candidate, *reversed(todo))
        if "." in todo or ".." in todo or len(beyond) > PATH_LIMIT:
            raise NotFoundError(path)
        return beyond

    def lstat(self, path: str) -> Entry | None:
        """Describe the entry at the path itself, be it a link; None where nothing is."""
        try:
            return self.lstat_canonical(self.resolve(path, follow_last=False))
        except NotFoundError:
            return None

    def stat(self, path: str) -> Entry | None:
        """Describe what the path leads to; None where nothing is or the link dangles."""
        try:
            canonical, entry = self._walk(path)
        except NotFoundError:
            return None
        if canonical in self._resolved_directories:
            entry = self.lstat_canonical(canonical)
        return None if entry is None or entry.kind is Kind.SYMLINK else entry

    def exists(self, path: str) -> bool:
        """Whether the path leads to anything (links in a loop lead to nothing, as for test(1))."""
        return self._kind(path) is not None

    def is_file(self, path: str) -> bool:
        """Whether the path leads to a regular file."""
        return self._kind(path) is Kind.FILE

    def is_directory(self, path: str) -> bool:
        """Whether the path leads to a directory."""
        return self._kind(path) is Kind.DIRECTORY

    def _kind(self, path: str) -> Kind | None:
        try:
            entry = self.stat(path)
        except LinkLoopError:
            return None
        return None if entry is None else entry.kind

    def read_bytes(self, path: str, limit: int = READ_LIMIT) -> bytes:
        """Read the file that the path leads to, whole.

        Raises:
            NotFoundError, NotAFileError, NotReadableError, TooLargeError, LinkLoopError: as they say.
        """
        return self.read_canonical(self.resolve(path), limit)

    def read_head(self, path: str, length: int) -> bytes:
        """Read the first ``length`` bytes of the file that the path leads to, or all where it has fewer.

        Raises:
            NotFoundError, NotAFileError, NotReadableError, LinkLoopError: as they say.
        """
        return self.head_canonical(self.resolve(path), length)

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
        try:
            canonical = self.resolve(directory)
        except NotFoundError:
            return []
        return sorted(_matching(self.list_canonical(canonical), pattern))

    def files(self, directory: str, pattern: str = "*") -> list[str]:
        """Paths of the regular files of a directory (links followed) that match, sorted by name."""
        paths = [f"{directory.rstrip('/')}/{name}" for name in self.names(directory, pattern)]
        return [path for path in paths if self.is_file(path)]


def _matching(names: list[str], pattern: str) -> list[str]:
    """Give the names that match a shell pattern; one star amid plain text, as in most, needs no regex."""
    prefix, star, suffix = pattern.partition("*")
    if not star or any(character in prefix + suffix for character in "*?["):
        return fnmatch.filter(names, pattern)
    least = len(prefix) + len(suffix)
    return [n for n in names if len(n) >= least and n.startswith(prefix) and n.endswith(suffix)]


def normalise_keeping_parents(path: str) -> str:
    """Give the absolute form without ``//``, ``/./`` or a last ``/``; ``..`` stays, since links decide it."""
    return "/" + "/".join(part for part in path.split("/") if part not in ("", "."))


def link_parts(target: str) -> list[str]:
    """Split a link's target into steps; a last ``/``, which asks for a directory, becomes a ``.``."""
    parts = [part for part in target.split("/") if part]
    return [*parts, "."] if target.endswith("/") else parts


def parents(path: str) -> list[str]:
    """Directories above a canonical path, innermost first, without the root: ``/a/b/c`` has /a/b and /a."""
    above = []
    while (path := posixpath.dirname(path)) != "/":
        above.append(path)
    return above
