"""Where what an image holds waits until it is written: a file without a name, so that no kill leaves it behind."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from tpu_image.agents.errors import AgentError, ImageError

CONTENT_LIMIT = 8 * 1024 * 1024 * 1024
"""Bytes of all layers of an image, unpacked: some ten times the largest agent."""

CHUNK = 1024 * 1024
"""Bytes that are held in memory at a time."""


LARGE_FILES = Path("/var/tmp")  # noqa: S108 - used for files without a name alone
"""Where temporary files go that may be large (file-hierarchy(7)): ``/tmp`` is often memory."""


def default_folder() -> Path:
    """Give the folder of large temporary files: that of ``TMPDIR`` where it is set."""
    if not os.environ.get("TMPDIR") and os.access(LARGE_FILES, os.W_OK | os.X_OK):
        return LARGE_FILES
    return Path(tempfile.gettempdir())


class Spool:
    """Bytes that are appended in stretches and read from any place; :meth:`close` lets go of them."""

    def __init__(self, folder: Path | None = None) -> None:
        """Make an empty one.

        Args:
            folder: on the file system that is to hold it; :func:`default_folder` where None.
        """
        self._folder = folder or default_folder()
        self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115 - closed by close()
        self.size = 0

    def __enter__(self) -> Spool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of everything."""
        self._file.close()

    def append(self, chunks: Iterable[bytes], where: str, *, limit: int = CONTENT_LIMIT) -> tuple[int, int]:
        """Add a stretch; give its offset, a multiple of a page, and its length in bytes.

        Raises:
            ImageError: more than ``limit`` bytes are held in all; ``where`` names what holds them.
            AgentError: there is no room.
        """
        start = position = -(-self.size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        for chunk in chunks:
            if position + len(chunk) > limit:
                raise ImageError(f"unpacks to more than {limit >> 20} MiB", where, "use a smaller image")
            self._write(chunk, position)
            position += len(chunk)
        self.size = position
        return start, position - start

    def _write(self, chunk: bytes, position: int) -> None:
        rest = memoryview(chunk)
        try:
            while rest:
                written = os.pwrite(self._file.fileno(), rest, position)
                rest, position = rest[written:], position + written
        except OSError as error:
            raise AgentError(
                f"cannot hold the files of an image: {error.strerror}",
                str(self._folder),
                "make room there, or set TMPDIR",
            ) from error

    @contextlib.contextmanager
    def view(self, offset: int, length: int) -> Iterator[memoryview]:
        """Look at a stretch as it was appended, without a copy in memory."""
        if not length:
            yield memoryview(b"")
            return
        with mmap.mmap(self._file.fileno(), length, access=mmap.ACCESS_READ, offset=offset) as mapped:
            view = memoryview(mapped)
            try:
                yield view
            finally:
                view.release()

    def read(self, offset: int, length: int) -> bytes:
        """Read bytes that were appended."""
        return os.pread(self._file.fileno(), length, offset)

    def chunks(self, offset: int, length: int) -> Iterator[bytes]:
        """Read bytes that were appended, a piece at a time."""
        end = offset + length
        while offset < end:
            data = self.read(offset, min(CHUNK, end - offset))
            yield data
            offset += len(data)
