"""Long work is never silent, and what it says can be read by a machine."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

from tpu_image.cli.progress import Display, State, display, progress_schema
from tpu_image.progress import BYTES

SLOW = """
import time
from tpu_image.cli.progress import display
with display({choice!r}) as progress:
    progress.at("reading")
    time.sleep(0.7)
    for done in (1, 2, 3):
        progress.at("writing", done * 10**6, 3 * 10**6)
        progress.log(f"line {{done}}")
        time.sleep(0.3)
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "TERM": "xterm"}


def events(choice: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    with display(choice) as progress:
        progress.at("reading")
        progress.at("writing", 1, 4)
        progress.log("a line\nthat is kept")
        progress.at("writing", 4, 4)
    return capsys.readouterr().err.splitlines()


def test_events_hold_the_schema_and_end_with_the_last_state(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.loads(line) for line in events("json", capsys)]
    for line in lines:
        jsonschema.validate(line, progress_schema())
    states = [(line["stage"], line["done"], line["total"]) for line in lines if "stage" in line]
    assert states[0] == ("reading", 0, 0)
    assert ("writing", 1, 4) in states
    assert states[-1] == ("writing", 4, 4)
    assert [line["log"] for line in lines if "log" in line] == [r"a line\nthat is kept"]


@pytest.mark.parametrize("choice", ["auto", "plain"])
def test_what_is_over_at_once_needs_no_line(choice: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert events(choice, capsys) == [r"a line\nthat is kept"]


def test_none_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert events("none", capsys) == []
    with display(quiet=True) as progress:
        progress.at("reading")
    assert capsys.readouterr().err == ""


def test_work_that_says_nothing_is_shown_time_and_again() -> None:
    seen: list[State] = []
    it = Display(seen.append, lambda line: None, 0.01)
    it.at("reading")
    deadline = time.monotonic() + 20
    while len(seen) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    it.close()
    assert len(seen) >= 5
    assert {state.stage for state in seen} == {"reading"}


def test_a_new_step_is_told_at_once_and_its_stage_keeps_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    with display("plain") as progress:
        for step in ("kernel", "kernel", "systemd"):
            progress.step("booting", step, "a line of the console")
        progress.at("hashing")
    assert capsys.readouterr().err.splitlines() == ["booting: kernel, 0 s", "booting: systemd, 0 s"]


@pytest.mark.parametrize("terminal", [True, False])
def test_what_a_step_says_cannot_move_the_cursor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "xterm")
    with display() as progress:
        progress.step("booting", "\x1b[2Jstep", "\x9b2Jline" + "x" * 500)
        progress.log("\x1b[2Jkept")
    shown = capsys.readouterr().err
    assert "kept" in shown
    assert max(map(len, shown.replace("\x1b[K", "").replace("\r", "\n").splitlines())) < 80
    assert shown.replace("\x1b[K", "").replace("\r", "").replace("\n", "").isprintable()
    assert "step" in shown
    assert ("line" in shown) == terminal


def test_nothing_is_shown_while_the_terminal_is_somebody_elses() -> None:
    seen: list[str] = []
    it = Display(lambda state: seen.append(state.step), seen.append, 0.01, lambda: seen.append("cleared"))
    it.step("booting", "kernel")
    with it.aside():
        before = len(seen)
        it.step("booting", "systemd")
        time.sleep(0.2)
        assert seen[before - 1 :] == ["cleared"]
    it.step("booting", "reported")
    it.close()
    assert "systemd" not in seen
    assert seen[-2:] == ["reported", "cleared"]


def test_a_rate_is_bytes_a_second() -> None:
    state = State("writing", 30_000_000, 60_000_000, BYTES, 2.0)
    assert str(state) == "writing: 30 of 60 MB, 15 MB/s, 2 s"
    assert state.event()["rate"] == 15_000_000
    assert State("writing", 1_000_000, 60_000_000, BYTES, 1e-6).rate < 10_000_000
    assert str(State("planning", 0, 0, BYTES, 3.0)) == "planning, 3 s"
    assert str(State("installing", 7, 226, "packages", 3.0)) == "installing: 7 of 226 packages, 3 s"


def on_a_terminal(choice: str) -> str:
    """What a program writes to a terminal."""
    ours, theirs = pty.openpty()
    code = SLOW.format(choice=choice)
    with subprocess.Popen([sys.executable, "-c", code], stderr=theirs, env=ENVIRONMENT) as process:
        os.close(theirs)
        written = b""
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:
                break
            if not piece:
                break
            written += piece
    os.close(ours)
    assert process.returncode == 0
    return written.decode()


def test_on_a_terminal_one_line_changes_and_logs_stay() -> None:
    written = on_a_terminal("auto")
    assert "\rreading, " in written
    assert "\rwriting: 3 of 3 MB" in written
    assert written.endswith("\r\x1b[K")
    for number in (1, 2, 3):
        assert f"\r\x1b[Kline {number}\r\n" in written


def test_a_reader_that_left_does_not_end_the_work(tmp_path: Path) -> None:
    code = SLOW.format(choice="json") + f"open({str(tmp_path / 'done')!r}, 'w')"
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, env=ENVIRONMENT) as process:
        assert process.stderr
        process.stderr.close()
    assert (tmp_path / "done").exists()
