"""Lock 64 MiB, as programs that use a TPU do, and say in one line of JSON whether the kernel let us."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import resource

SIZE = 64 * 1024 * 1024
"""Bytes: eight times what Linux lets a user lock by default."""


def lock() -> str:
    """Lock fresh memory; give an empty text, or the error's."""
    memory = mmap.mmap(-1, SIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(SIZE)):
        return os.strerror(ctypes.get_errno())
    return ""


def main() -> None:
    """Print what came of it, with the limit that held."""
    error = lock()
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    limit = "unlimited" if soft == resource.RLIM_INFINITY else f"{soft // 1024} KiB"
    detail = "{}limit {}, uid {}".format(error + "; " if error else "", limit, os.getuid())
    print(json.dumps({"kind": "locked-memory", "ok": not error, "detail": detail}))


if __name__ == "__main__":
    main()
