"""Commands on the running machine: found in fixed places, bounded in time, told when they fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpu_image import machine
from tpu_image.catalogue.activation import Command


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that stands for the system's own program directories."""
    monkeypatch.setattr(machine, "PROGRAM_DIRECTORIES", (str(tmp_path),))
    return tmp_path


def program(folder: Path, body: str, mode: int = 0o755) -> Command:
    path = folder / "reload"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(mode)
    return Command(("reload", "--now"), "load it", (), seconds=1)


def test_a_command_gets_its_arguments_and_a_plain_environment(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/somewhere")
    machine.run(program(programs, f'echo "$@" "${{LD_LIBRARY_PATH-unset}}" "$LC_ALL" > {programs}/seen'))
    assert (programs / "seen").read_text() == "--now unset C.UTF-8\n"


def test_a_program_on_the_caller_s_path_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = program(tmp_path, "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(machine.ActivationError, match="reload is not installed; run it to load it"):
        machine.run(command)


def test_a_file_that_may_not_be_executed_is_no_program(programs: Path) -> None:
    with pytest.raises(machine.ActivationError, match="is not installed"):
        machine.run(program(programs, "exit 0", mode=0o644))


def test_a_failure_shows_status_and_output(programs: Path) -> None:
    with pytest.raises(
        machine.ActivationError, match="reload --now: exit status 3: bad rule; run it to load it"
    ):
        machine.run(program(programs, "echo bad rule; exit 3"))


def test_a_command_that_hangs_is_ended(programs: Path) -> None:
    with pytest.raises(machine.ActivationError, match="not done after 1 s"):
        machine.run(program(programs, "sleep 30"))
