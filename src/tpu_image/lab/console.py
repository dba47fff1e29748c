"""The guest's serial console: its text within bounds, how far the boot is, and what ends it for good."""

from __future__ import annotations

import re
from typing import NamedTuple

from tpu_image.lab.result import Stage

KEPT = 512 * 1024
"""Bytes of the console that are kept: its end."""

LINE_LIMIT = 4096
"""Characters of one line that are looked at."""

STAGES = (
    ("firmware", re.compile(r"SeaBIOS \(version|UEFI firmware|BdsDxe: ")),
    ("boot loader", re.compile(r"Booting from |BdsDxe: starting|GRUB loading|GNU GRUB")),
    ("kernel", re.compile(r"\] Linux version ")),
    ("initramfs", re.compile(r"Run /init as init process|Loading, please wait")),
    ("systemd", re.compile(r"systemd\[1\]: (Detected|systemd \d|Hostname set)|^Welcome to [^G]")),
    ("login", re.compile(r"\S login: ?$")),
)
"""What a console shows when a stage begins, in the order in which they come."""

PANIC = re.compile(r"Kernel panic - not syncing: (.*)")

DEAD_ENDS = (
    (re.compile(r"^No bootable device"), "the firmware finds no boot loader on the disk"),
    (re.compile(r"^grub rescue> ?"), "GRUB finds neither its modules nor its configuration"),
    (re.compile(r"^\(initramfs\) ?"), "the initramfs did not find the root and waits at its shell"),
    (re.compile(r"^You are in emergency mode"), "systemd is in emergency mode"),
)
"""What a console shows where a boot cannot go on without a person."""

_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[^\[]|[\x00-\x08\x0b-\x1f\x7f]")
"""Escape sequences (ECMA-48) and control characters, but for tab and newline."""


class Ending(NamedTuple):
    """That the boot is over, as the console says: ``panic`` for a kernel that panicked."""

    panic: bool
    reason: str


class Console:
    """What came out of the serial port so far."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self.ending: Ending | None = None
        self.last_line = ""
        self._kept = bytearray()
        self._partial = ""

    @property
    def text(self) -> str:
        """The end of what was received, as it came."""
        return self._kept.decode("utf-8", "replace")

    @property
    def partial(self) -> bytes:
        """What has come of a line that is not complete, such as a prompt, as it came."""
        return bytes(self._kept[self._kept.rfind(b"\n") + 1 :][-LINE_LIMIT:])

    def tail(self, lines: int = 20) -> list[str]:
        """Give the last lines that hold something, without escape sequences."""
        plain = (plain_line(line) for line in self.text.splitlines())
        return [line for line in plain if line.strip()][-lines:]

    def feed(self, data: bytes, seconds: float) -> None:
        """Take what has arrived ``seconds`` after power-on."""
        self._kept += data
        if len(self._kept) > KEPT:
            del self._kept[:-KEPT]
        text = self._partial + data.decode("utf-8", "replace")
        *lines, self._partial = text.replace("\r", "\n").split("\n")
        self._partial = self._partial[-LINE_LIMIT:]
        for line in (*lines, self._partial):
            self._look_at(plain_line(line[-LINE_LIMIT:]), seconds)

    def _look_at(self, line: str, seconds: float) -> None:
        if not line.strip():
            return
        self.last_line = line.strip()
        reached = len(self.stages)
        names = [stage.name for stage in self.stages]
        after = max((i for i, (name, _) in enumerate(STAGES) if name in names), default=-1) if reached else -1
        for name, pattern in STAGES[after + 1 :]:
            if pattern.search(line):
                self.stages.append(Stage(name, seconds))
        if self.ending is None:
            self.ending = ending_of(line)


def plain_line(line: str) -> str:
    """Take escape sequences and control characters out of a line."""
    return _CONTROL.sub("", line)


def ending_of(line: str) -> Ending | None:
    """Say whether a line tells that the boot is over."""
    panic = PANIC.search(line)
    if panic:
        return Ending(True, f"kernel panic: {panic[1].strip()[:300]}")
    for pattern, reason in DEAD_ENDS:
        if pattern.search(line):
            return Ending(False, reason)
    return None
