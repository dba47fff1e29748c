"""Files that appear whole or not at all, and only where they are meant to.

A killed writer leaves the old file or the new one, beside it at most a temporary that the next write clears away.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections import namedtuple  # typing takes a boot task too long to load
from collections.abc import Callable, Iterator

STALE_SECONDS = 600
"""Age at which a temporary file has lost its writer."""


class Owner(namedtuple("Owner", "uid gid")):
    """User and group id."""

    __slots__ = ()
    uid: int
    gid: int


def write_in_home(directory: str, name: str, content: bytes, owner: Owner, mode: int = 0o644) -> bool:
    """Have a file with this content, mode and owner in a directory that its user controls.

    The caller may be root and the directory its user's, who can put links, pipes and hard links there at any
    moment: nothing in it is followed, and no file that is there is changed, only replaced. The directory is made
    where it is missing; a file that is right already is left alone.

    Returns:
        Whether anything was written.

    Raises:
        OSError: the directory is a link or no directory, a directory has the file's name, or a system call failed.
    """
    with _opened_home(directory, owner) as home:
        _remove_stale(home, name)
        if _is_right(home, name, content, owner, mode):
            return False

        def finish(file: int) -> None:
            os.fchown(file, owner.uid, owner.gid)
            os.fchmod(file, mode)

        _replace(home, name, content, finish)
        return True


def replace(path: str, content: bytes) -> None:
    """Give a file of root's new content; its mode, owner and extended attributes stay, links are followed.

    Raises:
        OSError: a system call failed; the file is as it was.
    """
    directory, name = os.path.split(os.path.realpath(path))

    def finish(file: int) -> None:
        try:
            original = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=home)
        except FileNotFoundError:
            os.fchmod(file, 0o644)
            return
        try:
            _copy_attributes(original, file)
        finally:
            os.close(original)

    with _opened(directory) as home:
        _remove_stale(home, name)
        _replace(home, name, content, finish)


def _copy_attributes(original: int, file: int) -> None:
    status = os.fstat(original)
    os.fchown(file, status.st_uid, status.st_gid)
    os.fchmod(file, stat.S_IMODE(status.st_mode))
    for attribute in os.listxattr(original):
        os.setxattr(file, attribute, os.getxattr(original, attribute))


@contextlib.contextmanager
def _opened(path: str, flags: int = 0, directory: int | None = None) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | flags, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _opened_home(path: str, owner: Owner) -> Iterator[int]:
    """Open a home directory itself, be its last part made first; only what is above it may be a link."""
    above, name = os.path.split(path)
    with _opened(above) as parent:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=parent)
        with _opened(name, os.O_NOFOLLOW, parent) as home:
            status = os.fstat(home)
            if status.st_uid == 0 and owner != Owner(status.st_uid, status.st_gid) and os.geteuid() == 0:
                os.fchown(home, owner.uid, owner.gid)
            yield home


def _is_right(home: int, name: str, content: bytes, owner: Owner, mode: int) -> bool:
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=home)
    except OSError:
        return False
    try:
        status = os.fstat(file)
        found = (status.st_mode, status.st_uid, status.st_gid, status.st_nlink, status.st_size)
        if found != (stat.S_IFREG | mode, owner.uid, owner.gid, 1, len(content)):
            return False
        return os.pread(file, len(content) + 1, 0) == content
    finally:
        os.close(file)


def _replace(directory: int, name: str, content: bytes, finish: Callable[[int], None]) -> None:
    temporary = f".{name}.{os.urandom(8).hex()}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(temporary, flags, 0o600, dir_fd=directory)
    try:
        _write_whole(file, content)
        finish(file)
        os.fsync(file)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise
    finally:
        os.close(file)
    os.fsync(directory)


def _write_whole(file: int, content: bytes) -> None:
    remaining = memoryview(content)
    while remaining:
        remaining = remaining[os.write(file, remaining) :]


def _remove_stale(directory: int, name: str) -> None:
    """Clear away what a killed writer left; a young one may belong to a writer at work."""
    for entry in os.listdir(directory):
        if not (entry.startswith(f".{name}.") and entry.endswith(".new")):
            continue
        with contextlib.suppress(OSError):
            if time.time() - os.lstat(entry, dir_fd=directory).st_mtime > STALE_SECONDS:
                os.unlink(entry, dir_fd=directory)
