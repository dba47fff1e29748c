"""The user's folder for what can be had again, which nobody else may write to: it is trusted, and run (QEMU)."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

REMEDY = "name a folder of yours in XDG_CACHE_HOME"


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
