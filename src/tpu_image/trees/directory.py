"""A tree in a directory of this machine: an unpacked image, a recording, or ``/`` itself.

The directory's content is hostile, and may be changed by others while it is read. So the kernel is never
given a path of several parts: each part is opened relative to the descriptor of the directory before it and
without following links (openat(2), ``O_NOFOLLOW``). A directory that becomes a link meanwhile is an error,
never a way out.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Callable

from tpu_image.trees.base import (
    NAMES_LIMIT,
    Entry,
    Kind,
    NotAFileError,
    NotFoundError,
    NotReadableError,
    TooLargeError,
    Tree,
    TreeError,
)

DESCRIPTOR_LIMIT = 64
"""Directories kept open at most, well below the usual limit of 1024 descriptors a process."""

STEP_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""How a directory on the way is opened; ``O_PATH`` needs search permission alone, as a path lookup does."""

READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""How a file is opened: should it have become a FIFO or terminal, opening neither waits nor adopts it."""

REMEMBERED_LIMIT = 10_000
"""Entries remembered at most."""

_CHUNK = 64 * 1024
_NAMES_ARE_UTF8 = (
    sys.getfilesystemencoding() == "utf-8" and sys.getfilesystemencodeerrors() == "surrogateescape"
)

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ESRCH)
"""Errors that say that nothing is there (``ESRCH``: a process of ``/proc`` that has ended)."""

_KINDS = {
    stat.S_IFREG: Kind.FILE,
    stat.S_IFDIR: Kind.DIRECTORY,
    stat.S_IFLNK: Kind.SYMLINK,
    stat.S_IFCHR: Kind.CHARACTER_DEVICE,
    stat.S_IFBLK: Kind.BLOCK_DEVICE,
    stat.S_IFIFO: Kind.FIFO,
    stat.S_IFSOCK: Kind.SOCKET,
}


class DirectoryTree(Tree):
    """The files below a directory, read where they are.

    It is a look at one time: directories stay open, and what was seen is remembered (what files hold is not), so
    one that is replaced meanwhile may still be seen as it was. Open a new tree to look again. One thread at a time
    may use it.

    Raises:
        TreeError: the root does not exist, is not a directory or cannot be opened.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__()
        self.root = os.fspath(root)
        self._descriptors: dict[str, int] = {}
        self._entries: dict[str, Entry | None] = {}
        self._listings: dict[str, list[str]] = {}
        self._descriptors["/"] = open_root(root, os.O_PATH)

    def __enter__(self) -> DirectoryTree:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close every directory; the tree cannot be read afterwards."""
        while getattr(self, "_descriptors", None):
            os.close(self._descriptors.popitem()[1])
            self._entries.clear()
            self._listings.clear()

    def lstat_canonical(self, path: str) -> Entry | None:
        """Describe the entry at the path.

        Raises:
            NotReadableError: it may not be looked at, or a directory on the way became a link.
        """
        if path not in self._entries:
            if len(self._entries) >= REMEMBERED_LIMIT:
                self._entries.clear()
            self._entries[path] = self._look(path)
        return self._entries[path]

    def _look(self, path: str) -> Entry | None:
        try:
            parent, name = self._locate(path)
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
            target = os.readlink(name, dir_fd=parent) if stat.S_ISLNK(status.st_mode) else b""
        except (OSError, ValueError) as error:
            if is_absent(error):
                return None
            raise NotReadableError(path, reason_of(error)) from error
        return entry_of_status(status, target)

    def read_canonical(self, path: str, limit: int) -> bytes:
        """Read the regular file at the path; a file of ``/proc`` or ``/sys``, whose size is 0, to its end.

        Raises:
            NotFoundError, NotAFileError, NotReadableError, TooLargeError: as they say.
        """
        return self._read(path, lambda descriptor: read_descriptor(descriptor, path, limit))

    def head_canonical(self, path: str, length: int) -> bytes:
        """Read the first bytes of the regular file at the path, and no more."""
        return self._read(path, lambda descriptor: read_descriptor_head(descriptor, path, length))

    def _read(self, path: str, read: Callable[[int], bytes]) -> bytes:
        entry = self.lstat_canonical(path)
        if entry is None:
            raise NotFoundError(path)
        require_file(path, entry)
        try:
            parent, name = self._locate(path)
            descriptor = os.open(name, READ_FLAGS, dir_fd=parent)
            try:
                return read(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            if is_absent(error):
                raise NotFoundError(path) from error
            raise NotReadableError(path, reason_of(error)) from error

    def list_canonical(self, path: str) -> list[str]:
        """Names in the directory at the path; empty where there is none.

        Raises:
            NotReadableError: it may not be read, or a directory on the way became a link.
            TooLargeError: it holds more than :data:`NAMES_LIMIT` names.
        """
        if path not in self._listings:
            names = self._list(path)
            if len(names) + len(self._listings) >= REMEMBERED_LIMIT:
                return names
            self._listings[path] = names
        return list(self._listings[path])

    def _list(self, path: str) -> list[str]:
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            descriptor = os.open(b".", flags, dir_fd=self._directory(path))
            try:
                return _list_descriptor(descriptor, path)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            if is_absent(error):
                return []
            raise NotReadableError(path, reason_of(error)) from error

    def _locate(self, path: str) -> tuple[int, bytes]:
        """Give the descriptor of the directory that holds the path, and the name in it."""
        parent, _, name = path.rpartition("/")
        return self._directory(parent or "/"), encode_name(name) if name else b"."

    def _directory(self, path: str) -> int:
        """Open the directory at a path, or give the descriptor it is open with."""
        if not self._descriptors:
            raise OSError(errno.EBADF, "the tree was closed")
        ancestor, names = path, []
        while ancestor not in self._descriptors:
            ancestor, _, name = ancestor.rpartition("/")
            ancestor = ancestor or "/"
            names.append(name)
        descriptor = self._descriptors[ancestor]
        for name in reversed(names):
            descriptor = open_step(descriptor, encode_name(name))
            ancestor = f"{ancestor.rstrip('/')}/{name}"
            self._descriptors[ancestor] = descriptor
            self._close_oldest()
        return descriptor

    def _close_oldest(self) -> None:
        if len(self._descriptors) > DESCRIPTOR_LIMIT:
            oldest = next(path for path in self._descriptors if path != "/")
            os.close(self._descriptors.pop(oldest))


def open_root(root: str | os.PathLike[str], access: int) -> int:
    """Open the directory that is to be a tree's root. Links in its own name are followed: the user gave it.

    Raises:
        TreeError: it does not exist, is not a directory or cannot be opened.
    """
    name = os.fspath(root)
    try:
        return os.open(name, access | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise TreeError(name, "does not exist") from error
    except NotADirectoryError as error:
        raise TreeError(name, "is not a directory") from error
    except (OSError, ValueError) as error:
        raise TreeError(name, reason_of(error)) from error


def open_step(parent: int, name: bytes) -> int:
    """Open the directory of this name without following a link.

    Raises:
        OSError: as openat(2) says; ``ELOOP`` where the name is a link.
    """
    try:
        return os.open(name, STEP_FLAGS, dir_fd=parent)
    except NotADirectoryError:
        # O_PATH with O_DIRECTORY says the same of a link as of a file, and only the file means "absent".
        if stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP)) from None
        raise


def read_descriptor(descriptor: int, path: str, limit: int) -> bytes:
    """Read an open file whole; ``path`` is for the messages.

    Raises:
        NotAFileError, TooLargeError: as they say, before anything is read where its size tells.
        OSError: as read(2) says.
    """
    status = os.fstat(descriptor)
    require_file(path, entry_of_status(status))
    content = bytearray()
    if status.st_size <= limit:
        # One byte more than is wanted: at the end of the file it tells that there is no more.
        while len(content) <= limit and (
            chunk := os.read(descriptor, min(max(status.st_size, _CHUNK), limit - len(content)) + 1)
        ):
            content += chunk
    if max(status.st_size, len(content)) > limit:
        raise TooLargeError(path, f"is larger than {limit} bytes")
    return bytes(content)


def read_descriptor_head(descriptor: int, path: str, length: int) -> bytes:
    """Read the first bytes of an open file; ``path`` is for the messages."""
    require_file(path, entry_of_status(os.fstat(descriptor)))
    content = b""
    while len(content) < length and (chunk := os.read(descriptor, length - len(content))):
        content += chunk
    return content


def _list_descriptor(descriptor: int, path: str) -> list[str]:
    names: list[str] = []
    with os.scandir(descriptor) as entries:
        for entry in entries:
            if len(names) == NAMES_LIMIT:
                raise TooLargeError(path, f"holds more than {NAMES_LIMIT} names")
            names.append(entry.name if _NAMES_ARE_UTF8 else decode_name(os.fsencode(entry.name)))
    return names


def require_file(path: str, entry: Entry) -> None:
    """Accept a regular file alone.

    Raises:
        NotAFileError: it is something else.
    """
    if entry.kind is not Kind.FILE:
        raise NotAFileError(path, f"is a {entry.kind.value}, not a regular file")


def entry_of_status(status: os.stat_result, target: bytes = b"") -> Entry:
    """Describe what a stat(2) call told; ``target`` is what readlink(2) did."""
    return Entry(
        _KINDS[stat.S_IFMT(status.st_mode)],
        stat.S_IMODE(status.st_mode),
        status.st_uid,
        status.st_gid,
        status.st_size,
        decode_name(target),
    )


def encode_name(name: str) -> bytes:
    """Give the bytes of one part of a canonical path.

    Raises:
        ValueError: no file can have that name, or it is ``..``, which no canonical path holds.
    """
    if name == "..":
        raise ValueError("'..' leads out of a directory")
    return encode_path(name)


def encode_path(path: str) -> bytes:
    """Give the bytes of a path or target: UTF-8 whatever the locale, as the files that hold paths are read.

    Raises:
        ValueError: no file can have that name.
    """
    return path.encode("utf-8", "surrogateescape")


def decode_name(name: bytes) -> str:
    """Give a name as text; bytes that are not UTF-8 come through as surrogates (PEP 383)."""
    return name.decode("utf-8", "surrogateescape")


def is_absent(error: OSError | ValueError) -> bool:
    """Whether the error says that nothing is at the path (a name that cannot exist: ``ValueError``)."""
    return error.errno in _ABSENT if isinstance(error, OSError) else True


def reason_of(error: OSError | ValueError) -> str:
    """Say in the system's words why a path could not be used."""
    if isinstance(error, OSError) and error.errno == errno.ELOOP:
        return "is reached through a symbolic link that was not there a moment ago"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[:1].lower() + error.strerror[1:]
    return str(error)
