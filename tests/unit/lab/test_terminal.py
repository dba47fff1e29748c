"""A terminal that was the guest's console is again what it was, and the guest knew what it is."""

from __future__ import annotations

import os
import signal
import sys
import termios
from pathlib import Path

import pexpect
import pytest

from tpu_image.lab.payload import profile
from tpu_image.lab.terminal import Terminal

SIZE = (41, 133)
READ = """
import os
from tpu_image.lab.terminal import here, raw_terminal
print(*here(), flush=True)
with raw_terminal() as keys:
    os.write(1, b"raw")
    print(os.read(keys, 10))
"""
SERIAL = 'tty() { echo /dev/ttyS0; }; . "$1"; stty size; echo "$TERM"'


def on_a_terminal(*command: str, kind: str = "xterm") -> pexpect.spawn[str]:
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path), "TERM": kind}
    return pexpect.spawn(
        command[0], list(command[1:]), env=environment, dimensions=SIZE, timeout=60, encoding="utf-8"
    )


def test_keys_are_passed_on_and_the_settings_are_restored() -> None:
    terminal = on_a_terminal(sys.executable, "-c", READ)
    before = termios.tcgetattr(terminal.child_fd)
    terminal.expect("41 133 xterm\r\n")
    terminal.expect("raw")
    assert not termios.tcgetattr(terminal.child_fd)[3] & termios.ISIG
    terminal.send("\x03")
    terminal.expect(r"b'\\x03'")
    terminal.expect(pexpect.EOF)
    assert terminal.wait() == 0
    assert termios.tcgetattr(terminal.child_fd) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_settings_are_restored_where_a_signal_ends_it(number: signal.Signals) -> None:
    terminal = on_a_terminal(sys.executable, "-c", READ)
    before = termios.tcgetattr(terminal.child_fd)
    terminal.expect("raw")
    terminal.kill(number)
    terminal.expect(pexpect.EOF)
    assert terminal.wait() == 128 + number
    assert termios.tcgetattr(terminal.child_fd) == before


@pytest.mark.parametrize("shell", ["bash", "dash"])
@pytest.mark.parametrize(("kind", "known"), [("xterm", "xterm"), ("nosuch-kind", "vt220")])
def test_a_login_on_the_console_knows_the_terminal(tmp_path: Path, shell: str, kind: str, known: str) -> None:
    script = tmp_path / "profile.sh"
    script.write_text(profile(Terminal(24, 80, kind)))
    terminal = on_a_terminal(shell, "-euc", SERIAL, "sh", str(script), kind="vt220")
    terminal.expect(pexpect.EOF)
    assert (terminal.before or "").splitlines()[1:] == ["24 80", known]


def test_another_login_is_left_alone(tmp_path: Path) -> None:
    script = tmp_path / "profile.sh"
    script.write_text(profile(Terminal(24, 80, "xterm")))
    terminal = on_a_terminal(
        "bash", "-euc", '. "$1"; stty size; echo "$TERM"', "sh", str(script), kind="vt220"
    )
    terminal.expect(pexpect.EOF)
    assert (terminal.before or "").splitlines() == ["41 133", "vt220"]
