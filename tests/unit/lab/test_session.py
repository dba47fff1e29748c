"""Whatever a guest does, its session ends, says how, and keeps what was said."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from tpu_image.lab.result import Outcome
from tpu_image.lab.session import LEFT, Ended, Session
from tpu_image.lab.terminal import REPORTED, Screen
from tpu_image.progress import SILENT, Progress

START = """
import json, os, select, sys, time
console, report, monitor, log = map(int, sys.argv[1:])
def say(**values): os.write(report, json.dumps(values).encode() + b"\\n")
def event(name, **data): os.write(monitor, json.dumps({"event": name, "data": data}).encode() + b"\\n")
os.write(monitor, b'{"QMP": {}}\\n')
"""
STAY = "\ntime.sleep(60)\n"


@contextmanager
def guest(session: Session, program: str) -> Iterator[subprocess.Popen[bytes]]:
    """A program in QEMU's place, with its ends of the session's sockets."""
    theirs = [
        pair.theirs.fileno() for pair in (session.console_pair, session.report_pair, session.monitor_pair)
    ]
    descriptors = [*theirs, session.log_pair.theirs.fileno()]
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", START + program, *map(str, descriptors)], pass_fds=descriptors
    )
    try:
        session.power_on()
        yield process
    finally:
        process.kill()
        process.wait()
        session.close()


def watched(program: str, timeout: float = 30, **settings: Any) -> tuple[Ended, Session]:
    session = Session(timeout, **settings)
    with guest(session, program) as process:
        return session.watch(process, SILENT), session


def test_a_guest_that_reports_to_the_end_has_reported() -> None:
    ended, session = watched('say(kind="settled", settled=True)\nsay(kind="end")' + STAY)
    assert ended == Ended(Outcome.REPORTED)
    assert session.guest.build().settled
    assert [stage.name for stage in session.console.stages] == ["report"]


def test_a_guest_that_hangs_ends_at_the_timeout_and_its_stage_is_told() -> None:
    ended, session = watched('os.write(console, b"[ 0.0] Linux version 6.1\\n")' + STAY, timeout=2)
    assert ended.outcome is Outcome.TIMED_OUT
    assert ended.reason == "no complete report within 2 s; it had come to: kernel"
    assert session.console.tail() == ["[ 0.0] Linux version 6.1"]


def test_a_panic_ends_it_at_once_and_is_named() -> None:
    ended, session = watched('os.write(console, b"Kernel panic - not syncing: no init\\nCPU: 0\\n")' + STAY)
    assert ended == Ended(Outcome.PANICKED, "kernel panic: no init")
    assert session.seconds < 20


def test_a_panic_that_only_the_panic_device_tells_is_one_too() -> None:
    ended, _ = watched('event("GUEST_PANICKED")' + STAY)
    assert ended.outcome is Outcome.PANICKED


@pytest.mark.parametrize(
    ("reason", "told"),
    [("guest-reset", "the guest started anew"), ("guest-shutdown", "the guest switched off")],
)
def test_a_guest_that_leaves_before_its_report_has_died(reason: str, told: str) -> None:
    ended, _ = watched(f'event("SHUTDOWN", reason="{reason}")' + STAY)
    assert ended == Ended(Outcome.DIED, f"{told} before its report was complete")


def test_a_guest_starts_anew_only_where_it_says_so() -> None:
    reset = 'time.sleep(0.5)\nevent("RESET", guest=True, reason="guest-reset")\n'
    said, begun = 'say(kind="restart")\n', 'say(kind="step-begins", name="commands")\n'
    ended, _ = watched(said + reset + reset + begun + 'time.sleep(2)\nsay(kind="end")' + STAY)
    assert ended == Ended(Outcome.REPORTED)
    ended, _ = watched(said + reset + begun + reset + STAY)
    assert ended == Ended(Outcome.DIED, "the guest started anew before its report was complete")


def test_what_qemu_says_before_it_ends_is_the_reason() -> None:
    ended, _ = watched('os.write(log, b"warning\\nno such device\\n")\nsys.exit(3)')
    assert ended == Ended(Outcome.DIED, "QEMU ended with status 3: no such device")


@pytest.mark.parametrize("off", ['event("SHUTDOWN", reason="guest-shutdown")\n', ""])
def test_a_report_that_is_longer_than_the_session_is_fast_is_heard_to_its_end(off: str) -> None:
    session = Session(30)
    said = 'say(kind="settled", settled=True, more="x" * 120_000)\nsay(kind="end")\n'
    with guest(session, said + off + "os._exit(0)") as process:
        process.wait()
        assert session.watch(process, SILENT) == Ended(Outcome.REPORTED)


@pytest.mark.parametrize("last", ["", 'say(kind="want", what="late-device")\n'])
def test_a_qemu_that_is_gone_before_it_is_answered_is_told_by_its_reason(last: str) -> None:
    session = Session(30, plug={"driver": "vfio-user-pci"})
    with guest(session, last + 'os.write(log, b"no such device\\n")\nos._exit(3)') as process:
        for pair in (session.console_pair, session.report_pair, session.monitor_pair, session.log_pair):
            pair.theirs.close()
        process.wait()
        ended = session.watch(process, SILENT)
    assert ended == Ended(Outcome.DIED, "QEMU ended with status 3: no such device")


def test_a_report_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpu_image.lab.messages.LINE_LIMIT", 100_000)
    ended, _ = watched('while True: os.write(report, b"x" * 65536)')
    assert ended == Ended(Outcome.DIED, "the guest's report does not end")


def test_a_guest_that_fills_the_disk_of_its_host_has_ended_for_that() -> None:
    ended, _ = watched('event("BLOCK_IO_ERROR", operation="write", action="stop", nospace=True)' + STAY)
    assert (ended.outcome, "no room for what the guest writes" in ended.reason) == (Outcome.DIED, True)


def test_a_monitor_that_talks_nonsense_ends_it() -> None:
    ended, _ = watched('os.write(monitor, b"nonsense\\n")' + STAY)
    assert ended == Ended(Outcome.DIED, "QEMU's monitor sends what is no JSON")


def test_a_kernel_that_does_not_show_up_is_not_waited_for_under_kvm() -> None:
    ended, _ = watched('os.write(console, b"SeaBIOS (version 1)\\n")' + STAY, patience=1)
    assert ended == Ended(Outcome.DIED, "no sign of a kernel within 1 s")


def test_a_late_device_is_plugged_in_once_when_the_guest_asks() -> None:
    program = """
received = b""
say(kind="want", what="late-device")
say(kind="want", what="late-device")
say(kind="want", what="the moon")
while received.count(b"\\n") < 2: received += os.read(monitor, 4096)
say(kind="fault", text=received.decode())
say(kind="end")
"""
    _, session = watched(program + STAY, plug={"driver": "vfio-user-pci", "bus": "late"})
    (said,) = session.guest.build().faults
    assert said.count("device_add") == 1
    assert '"bus": "late"' in said


def test_a_guest_that_is_kept_goes_on_until_it_switches_off() -> None:
    told: list[str] = []
    program = 'say(kind="end")\ntime.sleep(1)\nevent("SHUTDOWN", reason="guest-shutdown")'
    ended, session = watched(program, keep=True, kept=lambda: told.append("kept"))
    assert ended == Ended(Outcome.REPORTED)
    assert told == ["kept"]
    assert 0 < session.ended_after < session.seconds - 0.9
    assert session.seconds >= 1


def test_how_far_it_is_is_told_within_every_second() -> None:
    session, told = Session(3), [time.monotonic()]

    class Told(Progress):
        def step(self, stage: str, step: str, line: str = "") -> None:
            told.append(time.monotonic())

    with guest(session, STAY) as process:
        session.watch(process, Told())
    assert len(told) > 5
    assert max(after - before for before, after in pairwise(told)) < 1


def test_every_descriptor_is_closed_in_the_end() -> None:
    before = len(os.listdir("/proc/self/fd"))
    watched('say(kind="end")')
    assert len(os.listdir("/proc/self/fd")) == before


class Shell:
    """Takes the terminal's place: has keys typed, keeps what is shown, and may type when it sees something."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answers: dict[bytes, bytes]) -> None:
        self.keys, self.typed = os.pipe()
        self.shown = b""
        self.answers = answers
        monkeypatch.setattr("tpu_image.lab.terminal.raw_terminal", self.terminal)
        monkeypatch.setattr("tpu_image.lab.terminal._write", self.show)

    @contextmanager
    def terminal(self) -> Iterator[int]:
        yield self.keys

    def show(self, data: bytes) -> None:
        self.shown += data
        for seen in [seen for seen in self.answers if seen in self.shown]:
            os.write(self.typed, self.answers.pop(seen))

    def close(self) -> None:
        for descriptor in (self.keys, self.typed):
            os.close(descriptor)


Typing = Callable[[dict[bytes, bytes]], Shell]


@pytest.fixture
def typing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Typing]:
    """A function that gives a terminal on which keys are typed when something shows."""
    made: list[Shell] = []

    def typing(answers: dict[bytes, bytes]) -> Shell:
        made.append(Shell(monkeypatch, answers))
        return made[-1]

    yield typing
    for shell in made:
        shell.close()


PROMPT = 'os.write(console, b"Linux version\\n# ")\n'


def test_a_shell_passes_keys_on_shows_the_console_and_ends_with_its_escape(typing: Typing) -> None:
    typing({b"# ": b"l\x03s", b"you typed l\x03s": b"\x1d"})
    ended, session = watched(
        PROMPT + 'say(kind="end")\nos.write(console, b"you typed " + os.read(console, 100))' + STAY,
        shell=True,
    )
    assert ended == Ended(Outcome.REPORTED)
    assert session.console.text == "Linux version\n# you typed l\x03s"


def test_a_shell_is_told_of_the_report_and_has_its_prompt_again(typing: Typing) -> None:
    shell = typing({b"ends it": b"\x1d"})
    others = 'time.sleep(1)\nos.write(console, b"what others say\\n")\n'
    watched(PROMPT + others + 'time.sleep(1)\nsay(kind="end")' + STAY, shell=True)
    assert shell.shown.endswith(b"\r\x1b[Ktpu-image: " + REPORTED.encode() + b"\r\n# ")


def test_a_shell_that_is_left_before_the_report_is_no_report(typing: Typing) -> None:
    typing({b"# ": b"\x1d"})
    assert watched(PROMPT + STAY, shell=True)[0] == Ended(Outcome.LEFT, LEFT)


def test_a_shell_whose_terminal_is_gone_ends(typing: Typing) -> None:
    shell = typing({})
    os.close(shell.typed)
    shell.typed = os.open(os.devnull, os.O_WRONLY)
    assert watched(PROMPT + STAY, shell=True)[0] == Ended(Outcome.LEFT, LEFT)


def test_a_shell_has_no_time_limit(typing: Typing) -> None:
    typing({b"later": b"\x1d"})
    program = PROMPT + 'time.sleep(2)\nos.write(console, b"later")' + STAY
    assert watched(program, timeout=1, shell=True)[0].outcome is Outcome.LEFT


def test_what_firmware_does_to_a_terminal_is_left_out_however_it_arrives(typing: Typing) -> None:
    shell, screen = typing({}), Screen()
    for byte in b"\x1bc\x1b[?7l\x1b[2JSeaBIOS\x1b":
        screen.show(bytes([byte]), firmware=True)
    assert shell.shown == b"\x1b[2JSeaBIOS"
    screen.show(b"c")
    assert shell.shown == b"\x1b[2JSeaBIOS\x1bc"
