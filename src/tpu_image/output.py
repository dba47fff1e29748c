"""Where results go: standard output, or a file that appears whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path


class OutputError(Exception):
    """A result cannot be written: one line says where, and why."""


def require_place(*outputs: Path | None, keep: str | os.PathLike[str]) -> None:
    """Refuse, before long work, what would lose a result or the input; None: standard output.

    Args:
        outputs: where results are to go.
        keep: what the results are about, which none may replace.

    Raises:
        OutputError: standard output is closed, or an output is ``keep``.
    """
    for output in outputs:
        if output is None and sys.stdout is None:
            raise OutputError("standard output is closed; give a file with -o")
        if output is not None and output.exists() and os.path.exists(keep) and os.path.samefile(output, keep):
            raise OutputError(f"{output}: the result would replace what it is about; name another file")


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
        place = output or "standard output"
        raise OutputError(
            f"{place}: {error.strerror}; the result is lost, name another place for it"
        ) from error


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
    with whole_file(path, mode) as file:
        file.write(data)


@contextlib.contextmanager
def whole_file(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Give a file that gets its name once the block ends well: durable, and in one step.

    Killed at any moment, nothing is left behind where the file system has unnamed files (O_TMPFILE); elsewhere one
    hidden file, which the next run takes over.

    Args:
        path: a regular file, which is replaced, or nothing yet. A link stays, and its file is replaced.
        mode: that of the file, less the umask.

    Raises:
        OSError: it cannot be written; what was there is still there.
    """
    path = path.resolve()
    temporary = path.with_name(f".{path.name}.new")
    descriptor, named = _new_file(path, temporary, mode)
    try:
        with os.fdopen(descriptor, "w+b") as file:
            yield file
            make_durable(file)
            if named or not _name(descriptor, path):
                if not named:
                    temporary.unlink(missing_ok=True)
                    named = _name(descriptor, temporary)
                temporary.replace(path)
    except BaseException as error:
        if named:
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)
        raise
    with contextlib.suppress(OSError):  # some file systems cannot; the name is given
        _sync_directory(path.parent)


def make_durable(file: BinaryIO) -> None:
    """Have what was written on the disk, so that no lack of room shows later."""
    file.flush()
    os.fsync(file.fileno())


def _new_file(path: Path, temporary: Path, mode: int) -> tuple[int, bool]:
    """Open an empty file, and say whether it has the temporary name: only where it cannot be without one."""
    flags = os.O_RDWR | os.O_CLOEXEC
    if os.path.isdir("/proc/self/fd"):  # what gives it a name later
        try:
            return os.open(path.parent, flags | os.O_TMPFILE, mode), False
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                raise
    while True:
        descriptor = os.open(temporary, flags | os.O_CREAT | os.O_NOFOLLOW, mode)
        if _take_over(descriptor, path, temporary):
            return descriptor, True
        os.close(descriptor)


def _take_over(descriptor: int, path: Path, temporary: Path) -> bool:
    """Lock and empty a temporary file; False where the one who had it has just given it its name."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise OSError(errno.EBUSY, "another process is writing it", str(path)) from None
    try:
        same = os.path.samestat(temporary.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
    if same:
        os.ftruncate(descriptor, 0)
    return same


def _name(descriptor: int, path: Path) -> bool:
    """Give an unnamed file a name, unless there is such a file.

    With a directory's descriptor Python calls linkat(2), which alone follows the link in /proc.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.link(f"/proc/self/fd/{descriptor}", path.name, src_dir_fd=folder, dst_dir_fd=folder)
    except FileExistsError:
        return False
    finally:
        os.close(folder)
    return True


def _sync_directory(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
