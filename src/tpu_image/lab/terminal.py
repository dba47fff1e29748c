"""The user's terminal as the guest's serial console (``--shell``)."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from types import FrameType
from typing import NamedTuple

ESCAPE = b"\x1d"
"""Ctrl-], as in telnet(1): it ends the session."""

LEAVE = "Ctrl-] (on many keyboards Ctrl-5) leaves it"
REPORTED = "the guest has reported and goes on; Ctrl-] or poweroff ends it"

FIRMWARE_RESETS = (b"\x1bc", b"\x1b[?7l")
"""SeaBIOS begins with a full reset, which on many terminals empties what can be scrolled back to, and has long lines
cut off ever after (ECMA-48 RIS; DEC private mode 7)."""

RESTORED = (
    b"\x1b[0m\x1b(B\x1b[?1l\x1b>"  # plain characters; the keys' usual codes
    b"\x1b[?7h\x1b[?25h\x1b[?47l\x1b7\x1b[r\x1b8"  # lines wrap, the cursor shows, the whole of the usual screen scrolls
    b"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?2004l"  # neither mouse nor pasting is told
    b"\r\n"
)
"""Takes back what a program that was left in the guest may have asked of the terminal (console_codes(4), xterm's)."""


class Terminal(NamedTuple):
    """Of what size a terminal is, and of what kind (``TERM``); 0 and empty where it does not tell."""

    rows: int = 0
    columns: int = 0
    kind: str = ""


def here() -> Terminal:
    """Describe the user's terminal."""
    kind = os.environ.get("TERM", "")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+-]*", kind) or kind == "dumb":
        kind = ""
    try:
        columns, rows = os.get_terminal_size(sys.stdin.fileno())
    except OSError:
        columns = rows = 0
    return Terminal(rows, columns, kind)


def is_here() -> bool:
    """Whether the standard input is a terminal."""
    return sys.stdin is not None and sys.stdin.isatty()


@contextlib.contextmanager
def raw_terminal() -> Iterator[int]:
    """Pass every key on; give the descriptor to read them from. The terminal is restored in the end.

    So it is where a signal ends this process, or the terminal is closed.
    """
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    handlers = {number: signal.signal(number, _end) for number in (signal.SIGHUP, signal.SIGTERM)}
    try:
        tty.setraw(descriptor)
        if sys.stdout.isatty():  # firmware clears the screen: what is there can then be scrolled back to
            _write(b"\n" * here().rows)
        yield descriptor
    finally:
        _write(RESTORED)
        with contextlib.suppress(termios.error):  # it is gone
            termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _end(number: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


class Screen:
    """Where the guest's console is shown, as it is."""

    def __init__(self) -> None:
        self._held = b""

    def show(self, data: bytes, *, firmware: bool = False) -> None:
        """Show what the guest wrote; of its firmware, without what would spoil the terminal."""
        data, self._held = self._held + data, b""
        if firmware:
            for sequence in FIRMWARE_RESETS:
                data = data.replace(sequence, b"")
            self._held = _beginning(data)
        _write(data[: len(data) - len(self._held)])

    def tell(self, line: str, partial: bytes) -> None:
        """Show a line of ours before the one, such as a prompt, that the guest has begun."""
        _write(b"\r\x1b[K" + f"tpu-image: {line}".encode() + b"\r\n" + partial)


def _beginning(data: bytes) -> bytes:
    """Give the end of what was received that may be the beginning of a sequence to leave out."""
    beginnings = {sequence[:length] for sequence in FIRMWARE_RESETS for length in range(1, len(sequence))}
    return max((each for each in beginnings if data.endswith(each)), key=len, default=b"")


def _write(data: bytes) -> None:
    with contextlib.suppress(OSError):
        while data:
            data = data[os.write(sys.stdout.fileno(), data) :]
