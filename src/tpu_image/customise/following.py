"""Following programs that run in an image: what they write is passed on, and how far they are is kept."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping

from tpu_image.catalogue.requirement import counted
from tpu_image.customise.session import CustomisationError, Listener, Session
from tpu_image.report.printable import printable

TAIL = 20
"""Lines of a failed step that are told."""

LINE_LIMIT = 4096
"""Bytes of a line after which it is cut."""


class Account:
    """What is known of a session that runs.

    Attributes:
        error: why it cannot go on, one line; None while it can.
        done: whether everything was done.
        tail: the last lines of the step that is at work.
    """

    def __init__(self, session: Session, listener: Listener, beginning: str) -> None:
        self._session = session
        self._listener = listener
        self._beginning = beginning
        self._step = -1
        self._status = 0
        self._began = self._step_began = time.monotonic()
        self.tail: deque[str] = deque(maxlen=TAIL)
        self.error: str | None = None
        self.done = False

    @property
    def name(self) -> str:
        """What is at work: a step, or what comes before the first."""
        return self._session.steps[self._step].name if self._step >= 0 else self._beginning

    @property
    def seconds(self) -> float:
        """Since the session began."""
        return time.monotonic() - self._began

    @property
    def stepping(self) -> bool:
        """Whether a step has begun."""
        return self._step >= 0

    @property
    def over(self) -> bool:
        """Whether it has come to an end, of whichever kind."""
        return self.done or self.error is not None or self._status != 0

    def line(self, data: bytes) -> None:
        """A step wrote a line. Programs show progress by returning to a line's start: the last state counts."""
        state = data.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]
        text = printable(state.expandtabs().rstrip(), LINE_LIMIT)
        if text:
            self.tail.append(text)
            self._listener.line(text)

    def remark(self, text: str) -> None:
        """What runs the steps says something itself."""
        self._listener.line(printable(text, LINE_LIMIT))

    def begin(self, step: int) -> None:
        """A step begins."""
        self._step = step
        self._step_began = time.monotonic()
        self.tail.clear()
        self._listener.step(self.name)

    def failed(self, status: int) -> None:
        """The step ended with a status as shells say it: 128 and more for a signal."""
        self._status = status

    def waiting(self) -> None:
        """Nothing was heard for a second."""
        self._listener.waiting(self.name, time.monotonic() - self._step_began)

    def judge(self) -> None:
        """Say how it went.

        Raises:
            CustomisationError: not to the end.
        """
        if self._status or self.error or not self.done:
            problem = ending_of(self._status) if self._status else self.error or "ended early"
            raise CustomisationError(f"{self.name}: {problem}", tuple(self.tail))

    def out_of_time(self) -> bool:
        """Whether the session took too long; that is its error then."""
        if self.seconds > self._session.time_limit:
            self.error = f"did not end within {counted(round(self._session.time_limit), 'second')}"
            return True
        return False


class Lines:
    """Cuts what comes in pieces into lines."""

    def __init__(self, tell: Callable[[bytes], None]) -> None:
        self._tell = tell
        self._held = b""

    def take(self, data: bytes) -> None:
        """Take more; nothing is its end."""
        *lines, self._held = (self._held + data).split(b"\n")
        if self._held and (not data or len(self._held) > 16 * LINE_LIMIT):
            lines.append(self._held)
            self._held = b""
        for line in lines:
            self._tell(line)


def follow(
    sources: Mapping[int, Callable[[bytes], None]], account: Account, ended: Callable[[], bool]
) -> None:
    """Pass on what is written and told, until all sources have ended, or the session has otherwise.

    Args:
        sources: what takes the lines of each descriptor.
        account: is asked for the time limit, and told of silence.
        ended: asked now and then whether that was all.
    """
    with selectors.DefaultSelector() as selector:
        for descriptor, tell in sources.items():
            selector.register(descriptor, selectors.EVENT_READ, Lines(tell))
        while selector.get_map():
            ready = selector.select(1.0)
            for key, _ in ready:
                data = _read(key.fd)
                key.data.take(data)
                if not data:
                    selector.unregister(key.fd)
            if account.out_of_time() or ended():
                return
            if not ready:
                account.waiting()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except ConnectionError:  # a socket whose other end was killed with something unread
        return b""


def ending_of(status: int) -> str:
    """Say how a program ended: its status as shells have it, 128 and more for a signal."""
    if status > 128:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(status - 128).name}"
    return f"ended with status {status}"
