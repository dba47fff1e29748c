"""The few system calls that Python does not wrap: mounting, a root of one's own, capabilities."""

from __future__ import annotations

import ctypes
import os

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_BIND, MS_MOVE = 32, 4096, 8192
MNT_DETACH = 2

PR_CAPBSET_DROP = 24
CAPABILITY_VERSION = 0x20080522
"""Of the structures below, which hold 64 capabilities (capget(2), ``_LINUX_CAPABILITY_VERSION_3``)."""

_libc = ctypes.CDLL(None, use_errno=True)

PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
"""Numbers of pivot_root(2), which the C library does not wrap; by machine, as uname(2) names it."""


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def _bytes(text: str) -> bytes:
    return os.fsencode(text)


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    """Attach a file system or folder to a folder; the arguments are those of the system call.

    Raises:
        OSError: it cannot be; ``filename`` is the target.
    """
    arguments = (_bytes(source), _bytes(target), _bytes(kind) or None, ctypes.c_ulong(flags), _bytes(options))
    _check(_libc.mount(*arguments), target)


def unmount(target: str, flags: int = 0) -> None:
    """Unmount, as umount2(2) does.

    Raises:
        OSError: it cannot be; ``filename`` is the target.
    """
    _check(_libc.umount2(_bytes(target), flags), target)


def change_root(folder: str) -> None:
    """Make a mounted folder the root of this mount namespace, and let go of the old root.

    Raises:
        OSError: it cannot be.
    """
    os.chdir(folder)
    _check(_libc.syscall(PIVOT_ROOT[os.uname().machine], b".", b"."), folder)
    # Both roots are mounted at "." now, the old one on top (pivot_root(2), "pivot_root(".", ".")").
    unmount(".", MNT_DETACH)
    os.chdir("/")


def set_host_name(name: str) -> None:
    """Set the host name of this UTS namespace.

    Raises:
        OSError: it cannot be.
    """
    _check(_libc.sethostname(name.encode(), len(name.encode())), name)


def keep_capabilities(kept: frozenset[int], last: int) -> None:
    """Give up every capability but these, 0 to ``last``, for this process and all that it will execute.

    The inheritable ones are all given up: with them root would get more than its bounds say (capabilities(7)).

    Raises:
        OSError: one cannot be given up.
    """
    for capability in set(range(last + 1)) - kept:
        _check(_libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0), f"capability {capability}")
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    # Effective, permitted, inheritable of the first 32, then of the others.
    sets = (ctypes.c_uint32 * 6)()
    _check(_libc.capget(header, sets), "capabilities")
    mask = sum(1 << capability for capability in kept)
    for index in range(6):
        sets[index] &= 0 if index % 3 == 2 else (mask >> (32 * (index // 3))) & 0xFFFFFFFF
    _check(_libc.capset(header, sets), "capabilities")
