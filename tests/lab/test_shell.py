"""``tpu-image boot --shell`` as a person meets it: on a terminal, from its first line to its last."""

from __future__ import annotations

import re
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

from lab_processes import environment, processes
from tpu_image.lab.run_folder import run_folder
from tpu_image.lab.terminal import FIRMWARE_RESETS, LEAVE, REPORTED, RESTORED

pytestmark = [pytest.mark.matrix, pytest.mark.usefixtures("_qemu")]

PATIENCE = 1200
ROWS, COLUMNS = 41, 133
PROMPT = r"root@\S+# "
PROMPT_BELOW = r"\r\n[^\n]*" + PROMPT
OK = "ok: .* pass.*"
INTERRUPT, ESCAPE = "\x03", "\x1d"


class Person:
    """At a terminal, with ``tpu-image boot --shell`` running on it."""

    def __init__(self, folder: Path, image: Path) -> None:
        self.folder = folder
        command = [*("-m", "tpu_image", "boot", str(image), "--tpu", "v6e:1", "--shell", "--no-agent")]
        self.terminal = pexpect.spawn(
            sys.executable,
            command,
            env={**environment(folder), "TERM": "xterm-256color", "NO_COLOR": "1"},
            dimensions=(ROWS, COLUMNS),
            timeout=PATIENCE,
            encoding="utf-8",
        )
        self.settings = termios.tcgetattr(self.terminal.child_fd)

    def sees(self, pattern: str | type[pexpect.EOF]) -> str:
        """Wait for what shows; give what showed before it."""
        self.terminal.expect(pattern)
        return self.terminal.before or ""

    def types(self, line: str) -> str:
        """Type a line at the guest's prompt; give what shows until the next."""
        self.terminal.sendline(line)
        self.sees(re.escape(line) + r"\r\n")  # the echo
        return self.sees(PROMPT)

    def ends(self) -> list[str]:
        """Wait for the end; give the lines that show after the guest's console."""
        self.sees(re.escape(RESTORED.decode()))
        lines = self.sees(pexpect.EOF).splitlines()
        self.terminal.wait()
        return lines

    def close(self) -> None:
        self.terminal.close(force=True)


@pytest.fixture
def sit_down(built: Path) -> Iterator[Callable[[], Person]]:
    """A function that has a person boot the image with a shell."""
    people: list[Person] = []
    with run_folder() as folder:  # a socket's path is short; that of a test's folder is not

        def sit_down() -> Person:
            people.append(Person(folder, built))
            return people[-1]

        yield sit_down
        for person in people:
            person.close()


def reported(person: Person) -> None:
    """Wait until the guest has reported, and its prompt shows again."""
    person.sees(re.escape(REPORTED) + PROMPT_BELOW)


def assert_it_ends_and_leaves_nothing(person: Person, last_line: str, status: int) -> None:
    lines = person.ends()
    assert re.fullmatch(last_line, lines[-1]), lines
    assert person.terminal.exitstatus == status
    assert termios.tcgetattr(person.terminal.child_fd) == person.settings
    assert not processes(person.folder.name)
    assert {path.name for path in person.folder.iterdir()} == {"lock"}


def test_a_person_works_in_the_guest_and_leaves_by_the_escape(sit_down: Callable[[], Person]) -> None:
    person = sit_down()
    person.sees(re.escape(LEAVE))
    booting = person.sees(re.escape(LEAVE) + PROMPT_BELOW)
    assert "looking for a way to run the guest" in booting
    assert "Linux version" in booting
    assert "booting: " not in booting
    assert not any(sequence.decode() in booting for sequence in FIRMWARE_RESETS)
    reported(person)
    shown = person.types("ls -l /dev/vfio; echo tpu-$((40+2))")
    assert "crw-rw-rw-" in shown
    assert "tpu-42" in shown
    assert f"{ROWS} {COLUMNS} xterm-256color" in person.types('echo "$(stty size) $TERM"')
    person.terminal.sendline("sleep 1000")
    person.sees(r"sleep 1000\r\n")
    person.terminal.send(INTERRUPT)
    person.sees(PROMPT)
    assert "130" in person.types("echo $?")
    person.terminal.send(ESCAPE)
    assert_it_ends_and_leaves_nothing(person, OK, 0)


def test_a_person_switches_the_guest_off(sit_down: Callable[[], Person]) -> None:
    person = sit_down()
    reported(person)
    person.terminal.sendline("poweroff")
    assert_it_ends_and_leaves_nothing(person, OK, 0)


def test_a_person_leaves_before_the_guest_can_report(sit_down: Callable[[], Person]) -> None:
    person = sit_down()
    person.sees("Linux version")
    person.terminal.send(ESCAPE)
    assert_it_ends_and_leaves_nothing(person, "not ok: 1 fail", 2)
