"""Where results go: standard output, or a file that appears whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from pathlib import Path


class OutputError(Exception):
    """A result cannot be written: one line says where, and why."""


def emit(text: str, output: Path | None = None) -> None:
    """Write a result to standard output or to a file.

    A reader that leaves early (``| head``) is no failure.

    Raises:
        OutputError: it cannot be written.
    """
    data = text.encode("utf-8", "surrogateescape")
    try:
        if output is None:
            _write_standard_output(data)
        else:
            write_file(output, data)
    except BrokenPipeError:
        _discard_standard_output()
    except OSError as error:
        raise OutputError(f"{output or 'standard output'}: {error.strerror}; the result is lost") from error


def wants_color(choice: str) -> bool:
    """Whether standard output gets colours; ``auto``: on a terminal, unless NO_COLOR says no (no-color.org)."""
    if choice != "auto":
        return choice == "always"
    terminal = sys.stdout is not None and sys.stdout.isatty()
    return terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def write_file(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Put a file in its place by one rename; ``mode`` is that of a new file, less the umask.

    Raises:
        OSError: it cannot be written; what was there is still there.
    """
    path = path.resolve()
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        path.write_bytes(data)  # a terminal, a pipe, /dev/null: nothing to replace
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _write_standard_output(data: bytes) -> None:
    if sys.stdout is None:
        raise OutputError("standard output is closed; the result is lost")
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _discard_standard_output() -> None:
    """Let what Python flushes at its end go nowhere."""
    null = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError):
        os.dup2(null, sys.stdout.fileno())
