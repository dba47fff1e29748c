"""Whatever a guest does, its session ends, says how, and keeps what was said."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

from tpu_image.lab.result import Outcome
from tpu_image.lab.session import Ended, Session, Standing

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
        return session.watch(process, lambda _: None), session


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
        assert session.watch(process, lambda _: None) == Ended(Outcome.REPORTED)


@pytest.mark.parametrize("last", ["", 'say(kind="want", what="late-device")\n'])
def test_a_qemu_that_is_gone_before_it_is_answered_is_told_by_its_reason(last: str) -> None:
    session = Session(30, plug={"driver": "vfio-user-pci"})
    with guest(session, last + 'os.write(log, b"no such device\\n")\nos._exit(3)') as process:
        for pair in (session.console_pair, session.report_pair, session.monitor_pair, session.log_pair):
            pair.theirs.close()
        process.wait()
        ended = session.watch(process, lambda _: None)
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


def test_the_observer_is_never_left_alone_for_a_second() -> None:
    session, seen = Session(3), list[Standing]()
    with guest(session, STAY) as process:
        session.watch(process, seen.append)
    gaps = [after.seconds - before.seconds for before, after in pairwise(seen)]
    assert len(gaps) > 4
    assert max(gaps) < 1


def test_every_descriptor_is_closed_in_the_end() -> None:
    before = len(os.listdir("/proc/self/fd"))
    watched('say(kind="end")')
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_shell_passes_keys_on_shows_the_console_and_ends_with_its_escape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys, typed = os.pipe()
    shown: list[bytes] = []

    @contextmanager
    def terminal() -> Iterator[int]:
        yield keys

    def show(data: bytes) -> None:
        shown.append(data)
        if b"you typed ls" in b"".join(shown):
            os.write(typed, b"\x1d")

    monkeypatch.setattr("tpu_image.lab.terminal.raw_terminal", terminal)
    monkeypatch.setattr("tpu_image.lab.terminal.show", show)
    os.write(typed, b"ls")
    program = 'say(kind="end")\ntime.sleep(1)\nos.write(console, b"you typed " + os.read(console, 100))'
    ended, _ = watched(program + STAY, shell=True)
    assert ended == Ended(Outcome.REPORTED)
    for descriptor in (keys, typed):
        os.close(descriptor)


def test_a_shell_that_is_left_before_the_report_is_no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, typed = os.pipe()

    @contextmanager
    def terminal() -> Iterator[int]:
        yield keys

    monkeypatch.setattr("tpu_image.lab.terminal.raw_terminal", terminal)
    os.write(typed, b"\x1d")
    assert watched(STAY, shell=True)[0] == Ended(Outcome.DIED, "the session was left")
    for descriptor in (keys, typed):
        os.close(descriptor)
