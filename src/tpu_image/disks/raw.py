"""A disk stored as it is, in a sparse file or on a block device."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from tpu_image.disks.errors import DamagedError, DiskError
from tpu_image.disks.source import BlockSource, Extent, ExtentKind


class RawSource(BlockSource):
    """A file whose bytes are the disk's. It owns the descriptor and is safe between threads (pread(2))."""

    def __init__(self, descriptor: int, name: str) -> None:
        super().__init__(name, os.lseek(descriptor, 0, os.SEEK_END), "raw")
        self._descriptor = descriptor

    def _read(self, offset: int, length: int) -> bytes:
        try:
            data = os.pread(self._descriptor, length, offset)
            while len(data) < length:
                more = os.pread(self._descriptor, length - len(data), offset + len(data))
                if not more:
                    raise DamagedError(f"shrank to {offset + len(data)} bytes while it was read", self.name)
                data += more
        except OSError as error:
            raise DiskError(f"cannot be read: {error.strerror}", self.name, "check the storage") from None
        return data

    def _extents(self, start: int, end: int) -> Iterator[Extent]:
        while start < end:
            data = min(self._seek(start, os.SEEK_DATA, end), end)
            if start < data:
                yield Extent(start, data - start, ExtentKind.ZERO)
            hole = min(self._seek(data, os.SEEK_HOLE, end), end) if data < end else end
            if data < hole:
                yield Extent(data, hole - data, ExtentKind.DATA)
            start = hole

    def _seek(self, offset: int, whence: int, end: int) -> int:
        try:
            return os.lseek(self._descriptor, offset, whence)
        except OSError as error:
            if error.errno == errno.ENXIO:  # no data behind the offset
                return end
            if error.errno == errno.EINVAL:  # a block device or file system that knows no holes
                return offset if whence == os.SEEK_DATA else end
            raise DiskError(f"cannot be read: {error.strerror}", self.name, "check the storage") from None

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def descriptor(self) -> int:
        """The open file's descriptor, which stays this source's own."""
        return self._descriptor

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the file, the same however a path spells it."""
        status = os.fstat(self._descriptor)
        return status.st_dev, status.st_ino


def open_raw(path: str) -> RawSource:
    """Open a regular file or block device as it is, without a look at its content.

    Raises:
        DiskError: it cannot be opened, or is something else.
    """
    try:
        # Without O_NONBLOCK, opening a fifo would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise DiskError(
            f"cannot be opened: {error.strerror}", path, "name an image file that you may read"
        ) from None
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
        os.close(descriptor)
        raise DiskError("is neither a file nor a block device", path, "name an image file")
    return RawSource(descriptor, path)
