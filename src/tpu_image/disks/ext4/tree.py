"""The files of an ext4 as a tree."""

from __future__ import annotations

from typing import NamedTuple

from tpu_image.disks.cache import BoundedCache
from tpu_image.disks.errors import DiskError
from tpu_image.disks.ext4.filesystem import Ext4FileSystem
from tpu_image.disks.ext4.inode import ROOT_INODE, Inode
from tpu_image.trees.base import (
    Entry,
    Kind,
    NotAFileError,
    NotFoundError,
    NotReadableError,
    TooLargeError,
    Tree,
)

NAMES_KEPT = 200_000
"""Names of directories that are kept."""


PLACES_KEPT = 32_768
"""Directories on the way to paths that are kept, each counted as often as it is deep."""


class _Place(NamedTuple):
    """A directory reached by a path, and the inodes from the root to it."""

    inode: Inode
    above: frozenset[int]


class Ext4Tree(Tree):
    """Files of an ext4. What is damaged on the way to a path is a NotReadableError of that path."""

    def __init__(self, filesystem: Ext4FileSystem) -> None:
        super().__init__()
        self.filesystem = filesystem
        self._places: BoundedCache[str, _Place] = BoundedCache(PLACES_KEPT, lambda place: len(place.above))
        self._directories: BoundedCache[int, dict[str, int]] = BoundedCache(
            NAMES_KEPT, lambda names: len(names) + 1
        )

    def lstat_canonical(self, path: str) -> Entry | None:
        """Describe the inode at the path."""
        inode = self._find(path)
        if inode is None:
            return None
        if inode.kind is None:
            raise NotReadableError(path, f"inode {inode.number} has an unknown type")
        target = ""
        if inode.kind is Kind.SYMLINK:
            try:
                target = self.filesystem.link_target(inode).decode("utf-8", "surrogateescape")
            except DiskError as error:
                raise NotReadableError(path, error.what) from None
        return Entry(inode.kind, inode.permissions, inode.uid, inode.gid, inode.size, target)

    def read_canonical(self, path: str, limit: int) -> bytes:
        """Read the regular file at the path."""
        inode = self._find(path)
        if inode is None:
            raise NotFoundError(path)
        if inode.kind is not Kind.FILE:
            kind = inode.kind.value if inode.kind else "unknown type"
            raise NotAFileError(path, f"is a {kind}, not a regular file")
        if inode.size > limit:
            raise TooLargeError(path, f"is larger than {limit} bytes")
        try:
            return self.filesystem.content(inode, limit)
        except DiskError as error:
            raise NotReadableError(path, error.what) from None

    def list_canonical(self, path: str) -> list[str]:
        """Names in the directory at the path."""
        inode = self._find(path)
        if inode is None or inode.kind is not Kind.DIRECTORY:
            return []
        return list(self._names(path, inode))

    def extended_attributes(self, path: str) -> dict[str, bytes]:
        """Read the extended attributes of what is at the path itself, a link included."""
        canonical = self.resolve(path, follow_last=False)
        inode = self._find(canonical)
        if inode is None:
            raise NotFoundError(path)
        try:
            return self.filesystem.extended_attributes(inode)
        except DiskError as error:
            raise NotReadableError(path, error.what) from None

    def _find(self, path: str) -> Inode | None:
        parent, _, name = path.rstrip("/").rpartition("/")
        if not name:
            return self._inode(path, ROOT_INODE)
        place = self._places.get(parent) or self._locate(parent)
        return None if place is None else self._child(path, place, name)

    def _locate(self, path: str) -> _Place | None:
        """Go from the root to a directory, keeping the places on the way."""
        place = _Place(self._inode(path, ROOT_INODE), frozenset((ROOT_INODE,)))
        done = ""
        for part in path.split("/"):
            if not part:
                continue
            inode = self._child(path, place, part)
            if inode is None:
                return None
            place = _Place(inode, place.above | {inode.number})
            done += "/" + part
            self._places.put(done, place)
        return place

    def _child(self, path: str, place: _Place, name: str) -> Inode | None:
        if place.inode.kind is not Kind.DIRECTORY:
            return None
        number = self._names(path, place.inode).get(name)
        if number is None:
            return None
        if number in place.above:
            raise NotReadableError(path, "a directory is inside itself")
        return self._inode(path, number)

    def _inode(self, path: str, number: int) -> Inode:
        try:
            return self.filesystem.inode(number)
        except DiskError as error:
            raise NotReadableError(path, error.what) from None

    def _names(self, path: str, inode: Inode) -> dict[str, int]:
        names = self._directories.get(inode.number)
        if names is None:
            try:
                names = self.filesystem.directory(inode)
            except DiskError as error:
                raise NotReadableError(path, error.what) from None
            self._directories.put(inode.number, names)
        return names
