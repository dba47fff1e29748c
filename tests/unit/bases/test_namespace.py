from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tpu_image.bases import namespace
from tpu_image.bases.errors import BaseError
from tpu_image.parent_death import ends_with_us


def stand_in(folder: Path, name: str, script: str) -> None:
    """Put a tool before the others."""
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_a_tool_that_is_missing_is_named_with_its_package() -> None:
    with pytest.raises(BaseError, match=r"nosuch is not installed, .*; run: apt-get install nosuch-utils"):
        namespace.find_tool("nosuch", "nosuch-utils")


def test_a_user_without_namespaces_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, "unshare", "echo 'unshare: unshare failed: Operation not permitted' >&2; exit 1")
    stand_in(tmp_path, "newuidmap", "")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(
        BaseError, match=r"lines for you in /etc/subuid .*: .*Operation not permitted; run it as root"
    ):
        namespace.as_root()


def test_root_of_a_container_without_namespaces_does_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, "unshare", "exit 1")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert namespace.as_root() == ends_with_us()


def test_everything_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    """Killed, it takes along what runs as root for it, and what that has started."""
    alive = tmp_path / "alive"
    script = f"sh -c 'while :; do date > {alive}; sleep 0.05; done' & wait"
    code = "import subprocess, sys; from tpu_image.bases.namespace import as_root; "
    code += "subprocess.run([*as_root(), 'sh', '-c', sys.argv[1]])"
    source = str(Path(namespace.__file__).parents[2])
    process = subprocess.Popen([sys.executable, "-c", code, script], env={**os.environ, "PYTHONPATH": source})
    wait_until(alive.exists)
    process.kill()
    process.wait()
    wait_until(lambda: not written_within(alive, 0.5), 10)


def written_within(path: Path, seconds: float) -> bool:
    before = path.stat().st_mtime_ns
    time.sleep(seconds)
    return path.stat().st_mtime_ns != before


def wait_until(condition: object, seconds: float = 60) -> None:
    assert callable(condition)
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)
