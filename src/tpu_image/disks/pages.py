"""Changed pages of a disk: the first in memory, further ones in a file without a name, which goes with the process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import BinaryIO

PAGE = 4096
"""Bytes in which changes are kept: the largest ext4 block, and a multiple of every sector size."""

MEMORY_LIMIT = 48 * 1024 * 1024
"""Bytes of pages that are held in memory."""


class Pages:
    """Pages by number. One thread writes; any may read meanwhile what was written before."""

    def __init__(self, memory_limit: int = MEMORY_LIMIT) -> None:
        self._held: dict[int, bytearray] = {}
        self._spilled: dict[int, int] = {}
        self._limit = memory_limit // PAGE
        self._file: BinaryIO | None = None

    def __len__(self) -> int:
        return len(self._held) + len(self._spilled)

    def __contains__(self, number: int) -> bool:
        return number in self._held or number in self._spilled

    def numbers(self) -> Iterator[int]:
        """Numbers of all pages, in no order."""
        yield from self._held
        yield from self._spilled

    def write(self, number: int, within: int, data: bytes) -> None:
        """Write into a page; one that is new must be written whole.

        Raises:
            OSError: the file cannot be written: no room.
        """
        held = self._held.get(number)
        if held is not None:
            held[within : within + len(data)] = data
        elif number not in self._spilled and len(self._held) < self._limit:
            self._held[number] = bytearray(data)
        else:
            slot = self._spilled.get(number, len(self._spilled))
            _write_whole(self._descriptor(), data, slot * PAGE + within)
            self._spilled[number] = slot

    def read(self, number: int, start: int, stop: int) -> bytes:
        """Read a part of a page that was written."""
        held = self._held.get(number)
        if held is not None:
            return bytes(held[start:stop])
        return os.pread(self._descriptor(), stop - start, self._spilled[number] * PAGE + start)

    def _descriptor(self) -> int:
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix=".tpu-image-", dir=_folder())  # noqa: SIM115 - see close
        return self._file.fileno()

    def close(self) -> None:
        """Let go of memory and file."""
        self._held.clear()
        self._spilled.clear()
        if self._file is not None:
            self._file.close()
            self._file = None


def _folder() -> str:
    """Where large temporary files belong: TMPDIR, else /var/tmp, since /tmp is often memory (file-hierarchy(7))."""
    if not os.environ.get("TMPDIR") and os.access("/var/tmp", os.W_OK | os.X_OK):  # noqa: S108
        return "/var/tmp"  # noqa: S108
    return tempfile.gettempdir()


def _write_whole(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
