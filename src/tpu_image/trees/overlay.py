"""A plan in progress: a tree over another that keeps what was written and leaves the other untouched."""

from __future__ import annotations

import posixpath

from tpu_image.trees.base import (
    READ_LIMIT,
    Entry,
    Kind,
    NotAFileError,
    NotFoundError,
    Tree,
    TreeError,
)
from tpu_image.trees.memory import Directory, File, Node, Symlink, content_of, entry_of

NEW_DIRECTORIES_LIMIT = 64
"""Directories made on the way to one path at most: a hostile link can name thousands."""


class Overlay(Tree):
    """What the base would be after the writes made here.

    ``written`` holds them by canonical path; None stands for something removed.
    """

    def __init__(self, base: Tree) -> None:
        super().__init__()
        self.base = base
        self.faults = base.faults
        self.written: dict[str, Node | None] = {}
        self._replaced: set[str] = set()
        self._written_in: dict[str, set[str]] = {}
        """Directory to the names in it that :attr:`written` holds."""

    def lstat_canonical(self, path: str) -> Entry | None:
        """Describe what was written at the path, or what the base has there."""
        if path in self.written:
            node = self.written[path]
            return None if node is None else entry_of(node)
        return None if self._is_below_replaced(path) else self.base.lstat_canonical(path)

    def read_canonical(self, path: str, limit: int) -> bytes:
        """Read what was written at the path, or what the base has there."""
        if path not in self.written and not self._is_below_replaced(path):
            return self.base.read_canonical(path, limit)
        return content_of(self.written.get(path), path, limit)

    def head_canonical(self, path: str, length: int) -> bytes:
        """Read the first bytes of what was written at the path, or of what the base has there."""
        if path not in self.written and not self._is_below_replaced(path):
            return self.base.head_canonical(path, length)
        return super().head_canonical(path, length)

    def list_canonical(self, path: str) -> list[str]:
        """Names of the base's directory and of what was written into it, without what was removed."""
        replaced = path in self._replaced or self._is_below_replaced(path)
        names = set() if replaced else set(self.base.list_canonical(path))
        for name in self._written_in.get(path, ()):
            if self.written[posixpath.join(path, name)] is None:
                names.discard(name)
            else:
                names.add(name)
        return list(names)

    def _is_below_replaced(self, path: str) -> bool:
        """Whether the base cannot be asked: above, it may have a link where this tree has something else."""
        end = path.rfind("/")
        while end > 0:
            if path[:end] in self._replaced:
                return True
            end = path.rfind("/", 0, end)
        return False

    def write(
        self,
        path: str,
        content: str | bytes,
        *,
        mode: int | None = None,
        owner: tuple[int, int] | None = None,
    ) -> None:
        """Give the file that the path leads to this content.

        A file that exists keeps its mode and owner unless they are given; a new one is 0644, root's. Links
        are followed, directories on the way are made.

        Raises:
            NotAFileError: something other than a regular file is there.
            NotFoundError, LinkLoopError: as :meth:`resolve` says.
        """
        canonical = self.resolve(path)
        entry = self.lstat_canonical(canonical)
        if entry is not None and entry.kind is not Kind.FILE:
            raise NotAFileError(path, f"is a {entry.kind.value}, not a regular file")
        if mode is None:
            mode = 0o644 if entry is None else entry.mode
        if owner is None:
            owner = (0, 0) if entry is None else (entry.uid, entry.gid)
        data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
        self._make_parents(canonical)
        self._put(canonical, File(data, mode, *owner))

    def symlink(self, path: str, target: str) -> None:
        """Put a link at the path itself, in place of a file or link that is there.

        Raises:
            NotAFileError: a directory or device is there.
            TreeError: the target is empty, which no link can be.
        """
        if not target:
            raise TreeError(path, "cannot be a link to an empty path")
        canonical = self.resolve(path, follow_last=False)
        entry = self.lstat_canonical(canonical)
        if entry is not None and entry.kind not in (Kind.FILE, Kind.SYMLINK):
            raise NotAFileError(path, f"is a {entry.kind.value}, not a link")
        self._make_parents(canonical)
        self._put(canonical, Symlink(target))

    def make_directory(self, path: str, *, mode: int = 0o755, owner: tuple[int, int] = (0, 0)) -> None:
        """Have a directory at the path with this mode and owner, and those above it."""
        canonical = self.resolve(path)
        entry = self.lstat_canonical(canonical)
        if entry is not None and entry.kind is not Kind.DIRECTORY:
            raise NotAFileError(path, f"is a {entry.kind.value}, not a directory")
        self._make_parents(canonical)
        self._put(canonical, Directory(mode, *owner))

    def remove(self, path: str) -> None:
        """Take away the file or link at the path itself; nothing happens where there is none.

        Raises:
            NotAFileError: a directory or device is there.
        """
        try:
            canonical = self.resolve(path, follow_last=False)
        except NotFoundError:
            return
        entry = self.lstat_canonical(canonical)
        if entry is None:
            return
        if entry.kind not in (Kind.FILE, Kind.SYMLINK):
            raise NotAFileError(path, f"is a {entry.kind.value}; only files and links are removed")
        self._put(canonical, None)

    def _make_parents(self, canonical: str) -> None:
        missing: list[str] = []
        parent = posixpath.dirname(canonical)
        while (entry := self.lstat_canonical(parent)) is None:
            if len(missing) == NEW_DIRECTORIES_LIMIT:
                raise TreeError(
                    canonical, f"lies more than {NEW_DIRECTORIES_LIMIT} directories below any that exists"
                )
            missing.append(parent)
            parent = posixpath.dirname(parent)
        if entry.kind is not Kind.DIRECTORY:
            raise NotAFileError(parent, f"is a {entry.kind.value}, not a directory")
        for directory in reversed(missing):
            self._put(directory, Directory())

    def _put(self, canonical: str, node: Node | None) -> None:
        entry = self.lstat_canonical(canonical)
        if entry is None or entry.kind is not Kind.DIRECTORY:
            self._replaced.add(canonical)
        self.written[canonical] = node
        directory, name = posixpath.split(canonical)
        if name:
            self._written_in.setdefault(directory, set()).add(name)
        self.derived.clear()
        self._resolved_directories = {"/"}

    def absorb(self, trial: Overlay) -> None:
        """Make the writes of an overlay over this one its own."""
        for path, node in trial.written.items():
            self._put(path, node)

    def before(self, path: str) -> Node | None:
        """What the base has at a canonical path; None where nothing is.

        Raises:
            NotAFileError: a device, socket or fifo is there.
            NotReadableError, TooLargeError: the file there cannot be read whole.
        """
        entry = None if self._is_below_replaced(path) else self.base.lstat_canonical(path)
        if entry is None:
            return None
        if entry.kind is Kind.FILE:
            content = self.base.read_canonical(path, READ_LIMIT)
            return File(content, entry.mode, entry.uid, entry.gid)
        if entry.kind is Kind.SYMLINK:
            return Symlink(entry.target, entry.uid, entry.gid)
        if entry.kind is Kind.DIRECTORY:
            return Directory(entry.mode, entry.uid, entry.gid)
        raise NotAFileError(path, f"is a {entry.kind.value}; only files, links and directories are changed")
