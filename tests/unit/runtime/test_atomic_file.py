"""Writing where a user could lay traps, and writing that is killed."""

from __future__ import annotations

import os
import signal
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from tpu_image.runtime import atomic_file
from tpu_image.runtime.atomic_file import Owner

ME = Owner(os.geteuid(), os.getegid())
TraceFunction = Callable[[FrameType, str, object], "TraceFunction"]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "tpu-runtime"
    folder.mkdir()
    return folder


def write(home: Path, content: bytes = b"new\n") -> bool:
    return atomic_file.write_in_home(str(home), "tpu-env", content, ME)


def state(file: Path) -> tuple[str, int]:
    return file.read_text(), stat.S_IMODE(file.stat().st_mode)


def test_the_directory_is_made_where_it_is_missing(tmp_path: Path) -> None:
    assert write(tmp_path / "tpu-runtime")
    assert state(tmp_path / "tpu-runtime/tpu-env") == ("new\n", 0o644)
    assert stat.S_IMODE((tmp_path / "tpu-runtime").stat().st_mode) == 0o755


def test_a_directory_above_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "var").mkdir()
    (tmp_path / "home").symlink_to("var")
    assert write(tmp_path / "home/tpu-runtime")
    assert (tmp_path / "var/tpu-runtime/tpu-env").exists()


def test_a_link_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "tpu-runtime").symlink_to("elsewhere")
    with pytest.raises(NotADirectoryError):
        write(tmp_path / "tpu-runtime")
    assert os.listdir(tmp_path / "elsewhere") == []


@pytest.mark.parametrize(("content", "mode"), [("precious\n", 0o600), ("new\n", 0o644)])
@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_in_place_of_the_file_is_replaced_and_the_other_file_left_alone(
    link: Callable[[Path, Path], None], content: str, mode: int, home: Path
) -> None:
    """Also where the other file looks right: its owner could change it later."""
    other = home.parent / "other"
    other.write_text(content)
    other.chmod(mode)
    link(other, home / "tpu-env")
    assert write(home)
    assert state(home / "tpu-env") == ("new\n", 0o644)
    assert (home / "tpu-env").lstat().st_ino != other.stat().st_ino
    assert not (home / "tpu-env").is_symlink()
    assert state(other) == (content, mode)


def test_a_pipe_does_not_hold_the_writer(home: Path) -> None:
    os.mkfifo(home / "tpu-env")
    assert write(home)
    assert state(home / "tpu-env") == ("new\n", 0o644)


def test_a_directory_in_place_of_the_file_is_an_error_and_leaves_nothing(home: Path) -> None:
    (home / "tpu-env").mkdir()
    with pytest.raises(IsADirectoryError):
        write(home)
    assert os.listdir(home) == ["tpu-env"]


@pytest.mark.parametrize("mode", [0o600, 0o666, 0o4755])
def test_a_wrong_mode_is_put_right(home: Path, mode: int) -> None:
    write(home)
    (home / "tpu-env").chmod(mode)
    assert write(home)
    assert state(home / "tpu-env") == ("new\n", 0o644)
    assert not write(home)


def test_the_owner_is_put_right_and_the_home_given_to_its_user(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.fail("files can be given away by root alone: run `sudo make test`")
    write(tmp_path / "tpu-runtime")
    owner = Owner(2000, 2000)
    assert atomic_file.write_in_home(str(tmp_path / "tpu-runtime"), "tpu-env", b"new\n", owner)
    for path in (tmp_path / "tpu-runtime", tmp_path / "tpu-runtime/tpu-env"):
        assert Owner(path.stat().st_uid, path.stat().st_gid) == owner


def test_what_a_killed_writer_left_is_cleared_away_once_it_is_old(home: Path) -> None:
    for name, age in ((".tpu-env.0123456789abcdef.new", 3600), (".tpu-env.fedcba9876543210.new", 0)):
        (home / name).write_text("half")
        os.utime(home / name, (time.time() - age,) * 2)
    (home / "other").touch()
    write(home)
    assert sorted(os.listdir(home)) == [".tpu-env.fedcba9876543210.new", "other", "tpu-env"]


def test_replacing_keeps_mode_owner_and_extended_attributes_and_follows_links(tmp_path: Path) -> None:
    file, link = tmp_path / "environment", tmp_path / "link"
    file.write_text("old")
    file.chmod(0o640)
    os.setxattr(file, "user.note", b"kept")
    link.symlink_to("environment")
    atomic_file.replace(str(link), b"new")
    assert link.is_symlink()
    assert state(file) == ("new", 0o640)
    assert os.getxattr(file, "user.note") == b"kept"


def test_replacing_what_is_not_there_makes_it(tmp_path: Path) -> None:
    atomic_file.replace(str(tmp_path / "environment"), b"new")
    assert state(tmp_path / "environment") == ("new", 0o644)


def killed_at(line: int, home: Path, content: bytes) -> bool:
    """Write in a child that is killed before the given line of the writer; whether it got that far."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    remaining = line

    def trace(frame: FrameType, event: str, _: object) -> TraceFunction:
        nonlocal remaining
        if event == "line" and frame.f_code.co_filename == atomic_file.__file__:
            remaining -= 1
            if not remaining:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    write(home, content)
    os._exit(0)


def test_a_writer_killed_at_any_line_leaves_the_old_file_or_the_new_one(home: Path) -> None:
    old, new = b"old", b"new" * 50_000
    left = []
    for line in range(1, 500):
        for leftover in home.iterdir():
            leftover.unlink()
        write(home, old)
        killed = killed_at(line, home, new)
        left.append((home / "tpu-env").read_bytes())
        if not killed:
            break
    assert set(left) == {old, new}
    assert left == sorted(left, key=[old, new].index), "the new file went away again"
    assert len(left) > 20
