"""A disk file as a block device with its partitions, which the kernel is told of: it need not read their table.

A device is bound and marked to free itself in one step (``LOOP_CONFIGURE``, Linux 5.8), so that whenever its owner
dies, the kernel frees it and its partitions with the last that holds it open: a mount, or the descriptor given here.

Source: Linux ``include/uapi/linux/loop.h``, ``include/uapi/linux/blkpg.h``, ``drivers/block/loop.c``; loop(4).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct

CONTROL = "/dev/loop-control"

LOOP_CTL_GET_FREE = 0x4C82
LOOP_CONFIGURE = 0x4C0A
LOOP_CLR_FD = 0x4C01
LOOP_GET_STATUS64 = 0x4C05
FLAG_AUTOCLEAR, FLAG_PARTITIONS = 4, 8

BLKPG = 0x1269
BLKPG_ADD_PARTITION = 1

ATTEMPTS = 64
"""Times that a free device is asked for: another program may take it first."""

# struct loop_config: fd, block size, then struct loop_info64, then reserved words.
_CONFIG = struct.Struct("=II 5Q 4I 64s 64s 32s 2Q 8Q")
_PARTITION = struct.Struct("=qqi 64s 64s 4x")
_PARTITION_REQUEST = struct.Struct("@iiiP")
_STATUS = struct.Struct("=2Q 216x")


class LoopError(Exception):
    """No block device can be made; the message says why, and what to do."""


def attach(descriptor: int) -> tuple[int, str]:
    """Make a block device of a file that is open for reading and writing.

    Returns:
        The device's descriptor, which keeps it, and its path.

    Raises:
        LoopError: this machine gives none.
    """
    info = (*[0] * 8, FLAG_AUTOCLEAR | FLAG_PARTITIONS, b"tpu-image", b"", b"", 0, 0)
    request = _CONFIG.pack(descriptor, 0, *info, *[0] * 8)
    for _ in range(ATTEMPTS):
        path = f"/dev/loop{_free_number()}"
        try:
            device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise LoopError(f"{path}: {error.strerror}; this machine must give loop devices") from None
        try:
            fcntl.ioctl(device, LOOP_CONFIGURE, request)
        except OSError as error:
            os.close(device)
            if error.errno != errno.EBUSY:
                raise LoopError(f"{path}: {error.strerror}; a kernel from 5.8 on is needed") from None
        else:
            return device, path
    raise LoopError("every free loop device was taken by another program; run it again")


def _free_number() -> int:
    try:
        control = os.open(CONTROL, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise LoopError(f"{CONTROL}: {error.strerror}; this machine must give loop devices") from None
    try:
        return fcntl.ioctl(control, LOOP_CTL_GET_FREE)
    except OSError as error:
        raise LoopError(f"{CONTROL}: no loop device is free ({error.strerror})") from None
    finally:
        os.close(control)


def add_partition(device: int, number: int, start: int, size: int) -> None:
    """Tell the kernel of a partition of a block device; one that it has found itself stays.

    Args:
        device: the device's descriptor.
        number: counted from 1.
        start: bytes.
        size: bytes.

    Raises:
        LoopError: the kernel refuses it.
    """
    partition = ctypes.create_string_buffer(_PARTITION.pack(start, size, number, b"", b""))
    request = _PARTITION_REQUEST.pack(BLKPG_ADD_PARTITION, 0, len(partition), ctypes.addressof(partition))
    try:
        fcntl.ioctl(device, BLKPG, request)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise LoopError(f"partition {number}: {error.strerror}; correct the partition table") from None


def release(path: str, status: os.stat_result) -> bool:
    """Have a block device freed if it still is one of this file; False where it is not, or no more.

    What ran with the device may have taken its mark away that it frees itself. One that is still open gets the mark
    back by this very request.
    """
    try:
        device = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        file = _STATUS.unpack(fcntl.ioctl(device, LOOP_GET_STATUS64, bytes(_STATUS.size)))
        if file != (status.st_dev, status.st_ino):
            return False
        fcntl.ioctl(device, LOOP_CLR_FD)
    except OSError:
        return False
    finally:
        os.close(device)
    return True
