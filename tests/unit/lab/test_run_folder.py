"""A run folder goes with its session; one that a killed session left goes with the next."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import TextIO

import pytest

from tpu_image.lab.run_folder import LOCK, PREFIX, clean, run_folder


def test_it_is_private_and_gone_afterwards(tmp_path: Path) -> None:
    with run_folder(tmp_path) as folder:
        (folder / "tpu.sock").touch()
        assert folder.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []


def test_that_of_a_killed_session_is_removed_by_the_next(tmp_path: Path) -> None:
    program = f"""
import os, signal, sys
from pathlib import Path
from tpu_image.lab.run_folder import run_folder
with run_folder(Path({str(tmp_path)!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": ":".join(sys.path)}, check=False)
    assert len(list(tmp_path.iterdir())) == 1
    with run_folder(tmp_path) as folder:
        assert list(tmp_path.iterdir()) == [folder]


def test_that_of_a_session_that_lives_stays(tmp_path: Path) -> None:
    with run_folder(tmp_path) as first, run_folder(tmp_path) as second:
        assert {first, second} == {*tmp_path.iterdir()}


def test_that_of_a_session_that_begins_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = fcntl.flock

    def locked_after_another_came(file: TextIO, operation: int) -> None:
        if operation == fcntl.LOCK_EX:
            clean(tmp_path)
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", locked_after_another_came)
    with run_folder(tmp_path) as folder:
        assert folder.is_dir()


def test_that_of_a_session_killed_before_it_had_its_lock_is_removed_once_it_is_old(tmp_path: Path) -> None:
    begun = tmp_path / f"{PREFIX}begun"
    begun.mkdir()
    (begun / f"{LOCK}.new").touch()
    os.utime(begun, (0, 0))
    clean(tmp_path)
    assert not begun.exists()


def test_what_only_looks_like_one_stays(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / LOCK).touch()
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / f"{PREFIX}being-made").mkdir()
    with run_folder(tmp_path):
        pass
    assert {path.name for path in tmp_path.iterdir()} == {"elsewhere", f"{PREFIX}link", f"{PREFIX}being-made"}
    assert (tmp_path / "elsewhere" / LOCK).exists()
