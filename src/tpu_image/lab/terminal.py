"""The user's terminal as the guest's serial console (``--shell``)."""

from __future__ import annotations

import contextlib
import os
import sys
import termios
import tty
from collections.abc import Iterator

ESCAPE = b"\x1d"
"""Ctrl-], as in telnet(1): it ends the session."""


@contextlib.contextmanager
def raw_terminal() -> Iterator[int]:
    """Pass every key on; give the descriptor to read them from. What is no terminal is left as it is."""
    descriptor = sys.stdin.fileno()
    if not os.isatty(descriptor):
        yield descriptor
        return
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor)
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def show(data: bytes) -> None:
    """Put what the guest wrote on the terminal, as it is: it is the guest's console."""
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), data)
