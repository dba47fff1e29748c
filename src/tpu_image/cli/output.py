"""Where results go: standard output or a file, whole or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from pathlib import Path

from tpu_image.cli.failures import UnusableError


def emit(text: str, output: Path | None = None) -> None:
    """Write a result to standard output or to a file.

    A reader that leaves early (``| head``) is no failure.

    Raises:
        UnusableError: it cannot be written.
    """
    data = text.encode("utf-8", "surrogateescape")
    try:
        if output is None:
            _write_standard_output(data)
        else:
            _write_file(output, data)
    except BrokenPipeError:
        _discard_standard_output()
    except OSError as error:
        raise UnusableError(f"{output or 'standard output'}: {error.strerror}; the result is lost") from error


def wants_color(choice: str) -> bool:
    """Whether standard output gets colours (``NO_COLOR``: no-color.org)."""
    if choice != "auto":
        return choice == "always"
    terminal = sys.stdout is not None and sys.stdout.isatty()
    return terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _write_standard_output(data: bytes) -> None:
    if sys.stdout is None:
        raise UnusableError("standard output is closed; give -o FILE")
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _discard_standard_output() -> None:
    """Let what Python still flushes at its end go nowhere."""
    null = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError):
        os.dup2(null, sys.stdout.fileno())


def _write_file(path: Path, data: bytes) -> None:
    path = path.resolve()
    if path.exists() and not stat.S_ISREG(path.stat().st_mode):
        path.write_bytes(data)  # a terminal, pipe or /dev/null: there is nothing to replace
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
