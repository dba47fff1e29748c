"""A folder for the sockets of one session: locked while it lives, removed by the next session where one was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "tpu-image-lab-"
LOCK = "lock"
MAKING_SECONDS = 600.0
"""Age at which a folder without a lock has lost its maker, who needs an instant."""


@contextlib.contextmanager
def run_folder(parent: Path | None = None) -> Iterator[Path]:
    """Give a folder that its owner alone can enter, and remove it in the end; those left by killed sessions too.

    Args:
        parent: where it is made; by default the folder for temporary files.
    """
    where = Path(tempfile.gettempdir()) if parent is None else parent
    clean(where)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=where))
    try:
        # The lock gets its name when it is held: without one a folder is left alone.
        with (folder / f"{LOCK}.new").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            Path(lock.name).rename(folder / LOCK)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def clean(parent: Path) -> None:
    """Remove the folders of this user's sessions that have ended; one whose lock is held has not."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if _is_ours(folder) and _is_left(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_ours(folder: Path) -> bool:
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _is_left(folder: Path) -> bool:
    """Whether nobody holds the lock. A folder without one is being made this very moment, or has been for long."""
    lock = folder / LOCK
    if not lock.exists():
        return time.time() - folder.lstat().st_mtime > MAKING_SECONDS
    with lock.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
