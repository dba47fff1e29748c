"""The cache folder: what is in it, what is in use, and what goes first when it grows too large.

An entry is a file. Whoever uses one holds a shared lock on it (flock(2)) until its process ends, however it ends;
nothing locked is ever removed. A file's time of change says when it was last used.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tpu_image.cache_folder import CacheError, keep
from tpu_image.cache_folder import adopt as adopt
from tpu_image.cache_folder import folder as folder
from tpu_image.cache_folder import names as names
from tpu_image.cache_folder import release as release
from tpu_image.cache_folder import subfolder as subfolder
from tpu_image.output import write_file

SIZE_LIMIT = 20 << 30
"""Bytes that the cache may take on the disk, unless TPU_IMAGE_CACHE_LIMIT says otherwise."""

ABOUT_LIMIT = 64 * 1024
"""Bytes of the description beside an entry."""

Kind = Literal["base", "download", "unfinished", "other"]

_SIZE = re.compile(r"([0-9]{1,12})([KMGT]?)(?:i?B)?", re.IGNORECASE)


@dataclass(frozen=True)
class About:
    """What is written down beside an entry: its origin (a URL or a reference) and its SHA-256, in hexadecimal."""

    origin: str
    sha256: str = ""
    validator: str = ""
    """What the server calls the version: an ETag or a date."""
    made: int = 0
    """Seconds since 1970."""


@dataclass(frozen=True)
class Entry:
    """One file or folder of the cache: ``size`` is what it takes on the disk, ``used`` seconds since 1970.

    What is neither a base nor a download is ``other``: roots that tests and the lab keep. It goes when all goes.
    """

    path: Path
    kind: Kind
    origin: str
    size: int
    used: float


def size_limit() -> int:
    """Give the bytes that the cache may take.

    Raises:
        CacheError: TPU_IMAGE_CACHE_LIMIT is no size.
    """
    given = os.environ.get("TPU_IMAGE_CACHE_LIMIT", "")
    if not given:
        return SIZE_LIMIT
    match = _SIZE.fullmatch(given)
    if match is None:
        raise CacheError(f"TPU_IMAGE_CACHE_LIMIT is {given!r}: give a size such as 20G")
    return int(match[1]) << (10 * " KMGT".index(match[2].upper() or " "))


def about_path(path: Path) -> Path:
    """Where the description of an entry is."""
    return path.with_name(path.name + ".json")


def describe(path: Path, about: About) -> None:
    """Write down what an entry is."""
    write_file(about_path(path), json.dumps(asdict(about), indent=1).encode() + b"\n")


def about(path: Path) -> About | None:
    """Read what an entry is; None where nothing legible is written down."""
    try:
        with about_path(path).open("rb") as file:
            data: Any = json.loads(file.read(ABOUT_LIMIT))
        found = About(**data)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    texts = (found.origin, found.sha256, found.validator)
    sound = all(isinstance(text, str) for text in texts) and isinstance(found.made, int)
    return found if sound else None


def hold(path: Path) -> bool:
    """Keep an entry from being removed until this process ends; False where it is not there (any more)."""
    if not keep(path):
        return False
    # Noted on the description, not on the entry: a build that reads it would take that for a change. And a cache that
    # may only be read is a cache all the same.
    with contextlib.suppress(OSError):
        os.utime(about_path(path))
    return True


def lock(descriptor: int) -> None:
    """Lock a file or folder for oneself, waiting for whoever uses it."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)


def lock_if_free(descriptor: int) -> bool:
    """Lock a file or folder for oneself; False where another process (or this one) uses it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def entries() -> list[Entry]:
    """List what is in the cache, the longest unused first."""
    found = [entry for path in _paths() if (entry := _entry(path)) is not None]
    return sorted(found, key=lambda entry: (entry.used, entry.path))


def _paths() -> Iterator[Path]:
    top = folder()
    for parent in (top, top / "bases", top / "downloads"):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            yield from parent.iterdir()


def _entry(path: Path) -> Entry | None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    if path.parent.name in ("bases", "downloads") and path.parent.parent == folder():
        if path.suffix == ".json":
            return None if path.with_suffix("").exists() else Entry(path, "unfinished", "", _taken(path), 0)
        if path.name.startswith("new-") or path.suffix == ".part":
            known = about(path)
            return Entry(path, "unfinished", known.origin if known else "", _taken(path), status.st_mtime)
        known = about(path)
        kind: Kind = "base" if path.parent.name == "bases" else "download"
        return Entry(path, kind, known.origin if known else "", _taken(path), _used(path, status.st_mtime))
    if path.name in ("bases", "downloads") or path.suffix == ".lock":
        return None
    return Entry(path, "other", "", _taken(path), status.st_mtime)


def _used(path: Path, made: float) -> float:
    """When an entry was used last, as :func:`hold` notes it; when it was made, if it never was."""
    try:
        return max(made, about_path(path).stat().st_mtime)
    except FileNotFoundError:
        return made


def _taken(path: Path) -> int:
    """Bytes on the disk of a file or a folder's files; what may not be read does not count."""
    total = 0
    for parent, _, files in os.walk(path):
        for name in files:
            with contextlib.suppress(OSError):
                total += Path(parent, name).lstat().st_blocks * 512
    with contextlib.suppress(OSError):
        total += path.lstat().st_blocks * 512
    return total


def remove(entry: Entry) -> bool:
    """Remove an entry and its description; False where somebody uses it, or may not."""
    try:
        descriptor = os.open(entry.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if not lock_if_free(descriptor) or not names(entry.path, descriptor):
                return False
            if entry.path.is_dir():
                if entry.kind == "unfinished":
                    return False  # files of many owners: the bases take theirs away themselves
                shutil.rmtree(entry.path)
            else:
                entry.path.unlink()
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    about_path(entry.path).unlink(missing_ok=True)
    return True


def shrink(keep: Path | None = None, limit: int | None = None) -> list[Entry]:
    """Remove what was not used for longest until the cache keeps its limit; gives what was removed.

    Args:
        keep: what was just made, which stays.
        limit: bytes; :func:`size_limit` by default.
    """
    limit = size_limit() if limit is None else limit
    found = [entry for entry in entries() if entry.kind != "other"]
    taken = sum(entry.size for entry in found)
    removed = []
    for entry in found:
        if taken <= limit:
            break
        if entry.path != keep and remove(entry):
            taken -= entry.size
            removed.append(entry)
    return removed
