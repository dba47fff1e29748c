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
    """Give the cache folder, which need not exist yet (XDG Base Directory Specification)."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    # The specification has relative paths ignored.
    base = Path(given) if given.startswith("/") else Path.home() / ".cache"
    return base / "tpu-image"


def subfolder(name: str) -> Path:
    """Give a part of the cache folder, made where it is not there.

    Raises:
        CacheError: it cannot be made, or somebody else could write to it.
    """
    path = folder() / name
    try:
        with contextlib.suppress(FileExistsError):
            folder().parent.mkdir(parents=True)
        for each in (folder(), path):
            each.mkdir(mode=0o755, exist_ok=True)  # with any umask
        require_own(path)
    except OSError as error:
        raise CacheError(f"{path}: {error.strerror}; {REMEDY}") from None
    return path


def require_own(path: Path) -> None:
    """Refuse a part of the cache folder that somebody else than root could have filled, or may fill.

    Raises:
        CacheError: it, the cache folder, or the one that holds that belongs to another user, or all may write to it.
        OSError: one of them cannot be looked at.
    """
    base = folder().parent
    for each in (base, folder(), path):
        status = each.stat()
        shared = each != base and status.st_mode & stat.S_IWOTH
        if shared or status.st_uid not in (os.geteuid(), 0):
            raise CacheError(f"{each}: somebody else can write to it; {REMEDY}")
