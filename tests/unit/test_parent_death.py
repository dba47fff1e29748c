from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from tpu_image.parent_death import ends_with_us

STARTER = """
import subprocess
from tpu_image.parent_death import ends_with_us
subprocess.run([*ends_with_us(), "sh", "-c", "echo started; exec sleep 1000"])
"""


def test_a_program_ends_with_the_process_that_started_it() -> None:
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", STARTER], stdout=subprocess.PIPE, env=environment
    ) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"started\n"
        starter.kill()
        ended, _, _ = select.select([starter.stdout], [], [], 60)  # the program has it open too
        assert ended
        assert starter.stdout.read() == b""


def test_it_is_found_where_the_path_of_a_user_does_not_lead(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert ends_with_us("TERM")[1:] == ["--pdeathsig", "TERM", "--"]


def test_where_it_is_missing_its_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "defpath", str(tmp_path))
    with pytest.raises(
        FileNotFoundError, match="is not installed; install the package util-linux: 'setpriv'"
    ):
        ends_with_us()
