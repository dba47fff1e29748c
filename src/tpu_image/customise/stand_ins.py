"""Files that stand in the place of an image's own while something is executed in it, and are taken away afterwards.

The original is put aside by a rename, and put back by one: the same inode, content, mode, times and attributes.
"""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple

ASIDE = ".tpu-image-aside"


class StandIn(NamedTuple):
    """A file to put somewhere for a while; nothing is done where its folder does not exist."""

    path: str
    content: bytes
    mode: int = 0o644


def put(stand_in: StandIn) -> bool:
    """Put the file in its place, whatever is there being put aside; False where there is no such folder.

    Raises:
        OSError: it cannot be written.
    """
    path = stand_in.path
    if not os.path.isdir(os.path.dirname(path)):
        return False
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, path + ASIDE)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, stand_in.mode)
    with open(descriptor, "wb") as file:
        file.write(stand_in.content)
        os.fchmod(descriptor, stand_in.mode)
    return True


def take_away(stand_in: StandIn) -> None:
    """Put the original back, unless something else took its place meanwhile: what a package or a script made.

    Raises:
        OSError: it cannot be written.
    """
    path = stand_in.path
    if _is_ours(stand_in):
        os.unlink(path)
    with contextlib.suppress(FileNotFoundError):
        if os.path.lexists(path):
            os.unlink(path + ASIDE)
        else:
            os.rename(path + ASIDE, path)


def _is_ours(stand_in: StandIn) -> bool:
    try:
        descriptor = os.open(stand_in.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    with open(descriptor, "rb") as file:
        return file.read(len(stand_in.content) + 1) == stand_in.content
