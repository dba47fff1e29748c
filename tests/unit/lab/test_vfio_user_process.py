"""The process of the vfio-user server: how it starts, and that it ends with whoever started it and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tpu_image.lab.vfio_user.process import EmulationError, emulating
from vfio_user_client import GET_INFO, V6E, Client


def test_the_server_leaves_no_socket_behind(tmp_path: Path) -> None:
    with emulating(tmp_path, {"a": V6E, "b": V6E}) as own:
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.sock", "b.sock"]
        assert own.socket("a").stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []


def test_the_socket_of_a_killed_server_is_replaced(tmp_path: Path) -> None:
    with emulating(tmp_path, {"a": V6E}) as own:
        os.kill(own.pid, signal.SIGKILL)
        with pytest.raises(EmulationError, match="server of the emulated TPUs ended with status -9"):
            own.next_line()
    assert [path.name for path in tmp_path.iterdir()] == ["a.sock"]
    with emulating(tmp_path, {"a": V6E}) as again, Client(again.socket("a")) as client:
        assert client.ask(GET_INFO, bytes(16)).error == 0


PARENT = """
import sys, time
from pathlib import Path
from tpu_image.lab.vfio_user.config_space import Identity
from tpu_image.lab.vfio_user.process import emulating
with emulating(Path(sys.argv[1]), {"a": Identity(0x1AE0, 0x6F, 0x1AE0, 0xD1)}) as own:
    print(own.pid, flush=True)
    time.sleep(60)
"""


def test_the_server_ends_with_its_killed_parent_and_cleans_up(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert parent.stdout is not None
    server = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while (Path("/proc") / str(server) / "cmdline").exists() and time.monotonic() < deadline:
        if (Path("/proc") / str(server) / "stat").read_text().split(") ")[1][0] == "Z":
            break  # ended; nobody has collected it yet
        time.sleep(0.02)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_said_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        pytest.raises(EmulationError, match="ended with status 73"),
        emulating(tmp_path / "none", {"a": V6E}),
    ):
        pass
    assert capfd.readouterr().err == f"{tmp_path / 'none'}: No such file or directory\n"


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmulationError, match="set TMPDIR"), emulating(tmp_path / ("x" * 100), {"a": V6E}):
        pass


def test_what_lies_in_the_working_directory_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('json of the working directory')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with emulating(tmp_path, {"a": V6E}) as own, Client(own.socket("a")) as client:
        assert client.ask(GET_INFO, bytes(16)).error == 0
