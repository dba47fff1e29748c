"""Where the pieces of an image are kept: a directory, or a tar archive that may be compressed."""

from __future__ import annotations

import os
import posixpath
import stat
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from tpu_image.agents import compression, tar_entries
from tpu_image.agents.errors import AgentError, ImageError
from tpu_image.agents.filesystem import quoted
from tpu_image.agents.spool import CHUNK, Spool
from tpu_image.trees.directory import READ_FLAGS, encode_name, open_root, open_step, reason_of

DOCUMENT_LIMIT = 4 * 1024 * 1024
"""Bytes of a manifest or configuration: what registries accept at most (distribution-spec)."""

MEMBERS_LIMIT = 10_000
"""Members of an archive: an image has some hundred layers at most, with three files each."""

LINKS_LIMIT = 8


class Store(ABC):
    """Files by name, names being relative paths with ``/``."""

    where: str
    """As messages name it."""

    @abstractmethod
    def chunks(self, name: str) -> Iterator[bytes]:
        """Read a file in pieces.

        Raises:
            ImageError: there is no such file.
        """

    @abstractmethod
    def has(self, name: str) -> bool:
        """Whether there is such a file."""

    @abstractmethod
    def size(self, name: str) -> int:
        """Bytes of a file.

        Raises:
            ImageError: there is no such file.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of what it holds."""

    def document(self, name: str) -> bytes:
        """Read a small file whole.

        Raises:
            ImageError: there is none, or it is larger than :data:`DOCUMENT_LIMIT`.
        """
        content = bytearray()
        for chunk in self.chunks(name):
            content += chunk
            if len(content) > DOCUMENT_LIMIT:
                raise ImageError(f"{quoted(name)} is larger than {DOCUMENT_LIMIT} bytes", self.where)
        return bytes(content)


class DirectoryStore(Store):
    """Files below a directory, reached without following a link."""

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self._root = open_root(path, os.O_PATH)

    def close(self) -> None:
        """Close the directory."""
        os.close(self._root)

    def has(self, name: str) -> bool:
        """Whether there is such a file."""
        try:
            os.close(self._open(name))
        except (OSError, ValueError):
            return False
        return True

    def size(self, name: str) -> int:
        """Bytes of a regular file."""
        descriptor = self._readable(name)
        try:
            return os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)

    def chunks(self, name: str) -> Iterator[bytes]:
        """Read a regular file in pieces."""
        descriptor = self._readable(name)
        try:
            while chunk := os.read(descriptor, CHUNK):
                yield chunk
        finally:
            os.close(descriptor)

    def _readable(self, name: str) -> int:
        try:
            return self._open(name)
        except (OSError, ValueError) as error:
            raise ImageError(f"{quoted(name)} cannot be read: {reason_of(error)}", self.where) from error

    def _open(self, name: str) -> int:
        current = os.dup(self._root)
        try:
            *above, last = [encode_name(part) for part in name.split("/")]
            for part in above:
                current, previous = open_step(current, part), current
                os.close(previous)
            descriptor = os.open(last, READ_FLAGS, dir_fd=current)
        finally:
            os.close(current)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise ValueError("is no regular file")
        return descriptor


class ArchiveStore(Store):
    """Members of a tar, which is unpacked once into a spool if it is compressed, and copied into it if not.

    So what is read later is what was indexed, whoever changes the archive meanwhile.
    """

    def __init__(self, path: Path, spool: Spool) -> None:
        self.where = str(path)
        self._spool = spool
        try:
            with path.open("rb", buffering=0) as file:
                source = iter(lambda: file.read(CHUNK), b"")
                self._start, length = spool.append(compression.plain(source, self.where), self.where)
        except IsADirectoryError:
            raise AgentError("is a directory", self.where, "give an archive") from None
        self._members: dict[str, tuple[int, int]] = {}
        self._links: dict[str, str] = {}
        self._index(length)

    def close(self) -> None:
        """Do nothing: the spool is the caller's."""

    def _index(self, length: int) -> None:
        with self._spool.view(self._start, length) as view:
            for count, entry in enumerate(tar_entries.entries(view, self.where)):
                if count == MEMBERS_LIMIT:
                    raise ImageError(f"has more than {MEMBERS_LIMIT} members", self.where)
                name = posixpath.normpath(entry.name)
                if entry.kind == tar_entries.FILE:
                    self._members[name] = (self._start + entry.offset, entry.size)
                elif entry.kind == tar_entries.SYMLINK:  # as docker save wrote a layer that stands twice
                    self._links[name] = posixpath.normpath(
                        posixpath.join(posixpath.dirname(name), entry.target)
                    )

    def _resolved(self, name: str) -> str:
        name = posixpath.normpath(name)
        for _ in range(LINKS_LIMIT):
            if name in self._members:
                break
            name = self._links.get(name, name)
        return name

    def has(self, name: str) -> bool:
        """Whether there is such a member."""
        return self._resolved(name) in self._members

    def size(self, name: str) -> int:
        """Bytes of a member."""
        return self._place(name)[1]

    def chunks(self, name: str) -> Iterator[bytes]:
        """Read a member in pieces."""
        return self._spool.chunks(*self._place(name))

    def _place(self, name: str) -> tuple[int, int]:
        place = self._members.get(self._resolved(name))
        if place is None:
            raise ImageError(f"has no {quoted(name)}", self.where)
        return place
