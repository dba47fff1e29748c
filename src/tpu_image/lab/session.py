"""One guest from power-on to its end: what it says is collected, and whatever ends it is named."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tpu_image.lab import terminal
from tpu_image.lab.console import Console
from tpu_image.lab.guest_report import GuestReportBuilder
from tpu_image.lab.messages import GuestError, Reader
from tpu_image.lab.qmp import Monitor, QmpError
from tpu_image.lab.result import Outcome, Stage
from tpu_image.progress import Progress

CHUNK = 64 * 1024
TICK = 0.25
"""Seconds after which it is told how things stand, and the end is looked for, at the latest."""

STAGE = "booting"
"""What progress calls a session."""

GRACE = 1.0
"""Seconds that a guest which has ended may still write to its console."""

LEFT = "the console was left before the guest's report was complete"
FULL = "there is no room for what the guest writes to its disk: set TMPDIR to a folder with more"

LOG_KEPT = 16 * 1024
"""Bytes of what QEMU itself says that are kept: the end."""


class Ended(NamedTuple):
    """How it ended, and why in one line."""

    outcome: Outcome
    reason: str = ""


class Pair:
    """A connected pair of sockets: ours, and QEMU's, whose descriptor is inherited."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()

    def close(self) -> None:
        """Close both."""
        self.ours.close()
        self.theirs.close()


@dataclass
class Session:
    """A guest that runs.

    Attributes:
        timeout: seconds from power-on until a report must be complete.
        keep: go on after the report, until the guest switches off.
        shell: the terminal is the guest's console; so the session ends with Ctrl-] or the guest's end, however long
            that takes.
        patience: seconds within which the guest must show that its kernel runs, None for no limit.
        plug: what QEMU's ``device_add`` is to plug in when the guest asks for a late device; None for nothing.
        kept: called once the report is complete and the guest goes on.
        ended_after: seconds from power-on to the complete report, or to the end without one.
    """

    timeout: float
    keep: bool = False
    shell: bool = False
    patience: float | None = None
    plug: dict[str, object] | None = None
    kept: Callable[[], None] | None = None
    console: Console = field(default_factory=Console)
    guest: GuestReportBuilder = field(default_factory=GuestReportBuilder)

    def __post_init__(self) -> None:
        self.console_pair, self.report_pair, self.monitor_pair, self.log_pair = Pair(), Pair(), Pair(), Pair()
        self._monitor = Monitor(self.monitor_pair.ours)
        self._reader = Reader()
        self._log = b""
        self._ended: Ended | None = None
        self._began = time.monotonic()
        self._over_at: float | None = None
        self._told_kept = False
        self._left = False
        self._screen = terminal.Screen()
        self._off = False
        self._prompt = b""
        """What the guest last waited with at the end of its console, nothing having been typed since."""
        self.ended_after = 0.0

    def close(self) -> None:
        """Close every socket; a second time does nothing."""
        for pair in (self.console_pair, self.report_pair, self.monitor_pair, self.log_pair):
            pair.close()

    @property
    def seconds(self) -> float:
        """Since power-on."""
        return time.monotonic() - self._began

    @property
    def is_alive(self) -> bool:
        """Whether the guest's kernel has shown that it runs."""
        beyond = {stage.name for stage in self.console.stages} - {"firmware", "boot loader"}
        return bool(beyond or self.guest.doing)

    def power_on(self) -> None:
        """Count the time from now."""
        self._began = time.monotonic()

    def watch(self, process: subprocess.Popen[bytes], progress: Progress) -> Ended:
        """Follow the guest until it has ended."""
        with contextlib.ExitStack() as stack:
            selector = stack.enter_context(selectors.DefaultSelector())
            self._register(selector)
            if self.shell:
                stack.enter_context(progress.aside())
                keys = stack.enter_context(terminal.raw_terminal())
                selector.register(keys, selectors.EVENT_READ, lambda: self._pass_keys(keys))
            while True:
                heard = selector.select(TICK)
                if not heard:
                    self._prompt = self.console.partial or self._prompt
                for key, _ in heard:
                    if key.data():
                        selector.unregister(key.fileobj)
                ended = self._look(process, gone=not heard and process.poll() is not None)
                if ended is not None:
                    self.ended_after = self.ended_after or self.seconds
                    return ended
                progress.step(STAGE, self._stage(), self.console.last_line)

    def _register(self, selector: selectors.BaseSelector) -> None:
        """Have each source read by its own method, which says whether the source has ended."""
        for pair, take in (
            (self.console_pair, self._take_console),
            (self.report_pair, self._take_report),
            (self.monitor_pair, self._take_monitor),
            (self.log_pair, self._take_log),
        ):
            pair.theirs.close()
            selector.register(pair.ours, selectors.EVENT_READ, lambda p=pair, t=take: _read(p.ours, t))

    def _take_log(self, data: bytes) -> None:
        self._log = (self._log + data)[-LOG_KEPT:]

    def _take_console(self, data: bytes) -> None:
        if self.shell:
            self._screen.show(data, firmware=not self.is_alive)
        self.console.feed(data, self.seconds)

    def _take_report(self, data: bytes) -> None:
        try:
            for message in self._reader.feed(data):
                if isinstance(message, GuestError):
                    self.guest.fault(str(message))
                else:
                    self.guest.take(message)
        except GuestError as error:
            self._end(Outcome.DIED, str(error))
        if self.guest.ended and all(stage.name != "report" for stage in self.console.stages):
            self.ended_after = self.seconds
            self.console.stages.append(Stage("report", self.ended_after))
        while self.guest.wanted:
            self._grant(self.guest.wanted.pop())

    def _grant(self, what: str) -> None:
        """Do once what the guest asks for, where it was asked for on this side too."""
        if what == "late-device" and self.plug is not None:
            self._monitor.send("device_add", self.plug)
            self.plug = None

    def _take_monitor(self, data: bytes) -> None:
        try:
            for name, values in self._monitor.feed(data):
                if name == "BLOCK_IO_ERROR" and values.get("nospace") is True:
                    self._end(Outcome.DIED, FULL)  # QEMU stops the guest, and waits for room
                self._take_event(name, values.get("reason"), values.get("desc"))
        except QmpError as error:
            self._end(Outcome.DIED, str(error))

    def _take_event(self, name: str, reason: object, description: object) -> None:
        if name == "GUEST_PANICKED":
            self._end(Outcome.PANICKED, "kernel panic, as the guest's pvpanic device says")
        elif name == "SHUTDOWN" and not self.guest.ended:
            self._off = True  # the end of its report may still be on the way
            told = {"guest-reset": "the guest started anew", "guest-shutdown": "the guest switched off"}
            what = told.get(str(reason), f"QEMU shut down ({reason})")
            self._end(Outcome.DIED, f"{what} before its report was complete")
        elif name == "RESET" and not self.guest.ended:
            # QEMU tells of more than one on the way from boot to boot, so they are not counted.
            if not self.guest.restarting:
                self._end(Outcome.DIED, "the guest started anew before its report was complete")
        elif name == "error":
            self.guest.fault(f"QEMU refuses: {description}")

    def _pass_keys(self, descriptor: int) -> bool:
        try:
            data = os.read(descriptor, 1024)
        except OSError:  # the terminal is gone
            data = b""
        self._prompt = b""
        if terminal.ESCAPE in data or not data:
            self._left = True
        with contextlib.suppress(OSError):  # a guest that reads none loses keys, and does not stop us
            self.console_pair.ours.send(data.replace(terminal.ESCAPE, b""), socket.MSG_DONTWAIT)
        return not data

    def _end(self, outcome: Outcome, reason: str) -> None:
        """Note the first thing that ended it; the console may still say more about it."""
        if self._ended is None:
            self._ended = Ended(outcome, reason)
            self._over_at = time.monotonic() + GRACE

    def _look(self, process: subprocess.Popen[bytes], *, gone: bool) -> Ended | None:
        """Say whether it has ended, and how; ``gone``: QEMU has, and all that it said has been heard."""
        said = self.console.ending
        if said is not None and not self.guest.ended and not (self.shell and not said.panic):
            self._end(Outcome.PANICKED if said.panic else Outcome.DIED, said.reason)
        if self._ended is not None:
            if time.monotonic() < (self._over_at or 0) and not gone:
                return None
            if self._off and self.guest.ended:
                return Ended(Outcome.REPORTED)
            return self._named_by_console(self._ended)
        if self._left:
            return Ended(Outcome.REPORTED) if self.guest.ended else Ended(Outcome.LEFT, LEFT)
        if self.guest.ended and not (self.keep or self.shell):
            return Ended(Outcome.REPORTED)
        if gone:
            return self._gone(process)
        if self.guest.ended:
            self._tell_kept()
        elif self.patience is not None and self.seconds > self.patience and not self.is_alive:
            return Ended(Outcome.DIED, f"no sign of a kernel within {self.patience:.0f} s")
        elif self.seconds > self.timeout and not self.shell:
            return Ended(
                Outcome.TIMED_OUT, f"no complete report within {self.timeout:.0f} s; {self._standing()}"
            )
        return None

    def _named_by_console(self, ended: Ended) -> Ended:
        """A panic's own words say more than that there was one."""
        said = self.console.ending
        return Ended(Outcome.PANICKED, said.reason) if said is not None and said.panic else ended

    def _gone(self, process: subprocess.Popen[bytes]) -> Ended:
        if self.guest.ended:
            return Ended(Outcome.REPORTED)
        lines = self._log.decode("utf-8", "replace").strip().splitlines()
        said = f": {lines[-1]}" if lines else ""
        return Ended(Outcome.DIED, f"QEMU ended with status {process.returncode}{said}")

    def _tell_kept(self) -> None:
        if self._told_kept:
            return
        self._told_kept = True
        if self.shell:
            self._screen.tell(terminal.REPORTED, self.console.partial or self._prompt)
        elif self.kept is not None:
            self.kept()

    def _stage(self) -> str:
        if self.guest.ended:
            return "reported"
        if self.guest.doing:
            return self.guest.doing
        return self.console.stages[-1].name if self.console.stages else "power-on"

    def _standing(self) -> str:
        return f"it had come to: {self._stage()}"


def _read(connection: socket.socket, take: Callable[[bytes], None]) -> bool:
    """Read what has arrived; True where the other end has hung up."""
    try:
        data = connection.recv(CHUNK)
    except OSError:
        return True
    if data:
        take(data)
    return not data
