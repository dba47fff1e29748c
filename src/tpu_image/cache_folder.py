"""The user's folder for what can be had again, which nobody else may write to: it is trusted, and run (QEMU)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path

REMEDY = "name a folder of yours in XDG_CACHE_HOME"

_held: dict[Path, int] = {}
"""Descriptors that hold the locks of this process."""


class CacheError(Exception):
    """The cache cannot be used as asked."""


def folder() -> Path:
    """Give the cache folder, which need not exist yet (XDG Base Directory Specification).

    Raises:
        CacheError: this user has no home.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    # The specification has relative paths ignored.
    if given.startswith("/"):
        return Path(given) / "tpu-image"
    try:
        return Path.home() / ".cache/tpu-image"
    except RuntimeError:
        raise CacheError(f"this user has no home folder; {REMEDY}") from None


def own_folder() -> Path:
    """Give the cache folder, made where it is not there.

    Raises:
        CacheError: it cannot be made, or somebody else could write to it.
    """
    return _made(folder())


def subfolder(name: str) -> Path:
    """Give a part of the cache folder, made where it is not there.

    Raises:
        CacheError: it cannot be made, or somebody else could write to it.
    """
    return _made(folder() / name)


def _made(path: Path) -> Path:
    try:
        with contextlib.suppress(FileExistsError):
            folder().parent.mkdir(parents=True)
        for each in dict.fromkeys((folder(), path)):
            each.mkdir(mode=0o755, exist_ok=True)  # with any umask
        require_own(path)
    except OSError as error:
        raise CacheError(f"{path}: {error.strerror}; {REMEDY}") from None
    return path


def require_own(path: Path) -> None:
    """Refuse a part of the cache folder that somebody else than root could have filled, or may fill.

    Raises:
        CacheError: it, the cache folder, or the one that holds that belongs to another user, is another user's link,
            or all may write to it.
        OSError: one of them cannot be looked at.
    """
    base = folder().parent
    for each in (base, folder(), path):
        status = each.stat()
        shared = status.st_mode & stat.S_IWOTH and not (each == base and status.st_mode & stat.S_ISVTX)
        # Whoever owns a link may have it lead elsewhere once this was looked at.
        if shared or not {status.st_uid, each.lstat().st_uid} <= {os.geteuid(), 0}:
            raise CacheError(f"{each}: somebody else can write to it; {REMEDY}")


def keep(path: Path) -> bool:
    """Keep a file or folder of the cache from being removed until this process ends; False where it is not there.

    Whoever removes one holds an exclusive lock on it (flock(2)) meanwhile.

    Raises:
        OSError: it cannot be opened.
    """
    while not (path in _held and names(path, _held[path])):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        _keep(path, descriptor)  # and look whether it was removed, or made anew, while this waited
    return True


def adopt(path: Path, descriptor: int) -> None:
    """Keep what is open and locked for oneself already; the descriptor may be closed then."""
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    _keep(path, os.dup(descriptor))  # a lock belongs to what was opened, however often it is duplicated


def _keep(path: Path, descriptor: int) -> None:
    release(path)
    _held[path] = descriptor


def release(path: Path) -> None:
    """Take back :func:`keep`."""
    if path in _held:
        os.close(_held.pop(path))


def names(path: Path, descriptor: int) -> bool:
    """Whether a path is that of an open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
