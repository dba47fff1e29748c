from __future__ import annotations

import os
from pathlib import Path

import pytest

from tpu_image import output


def test_a_file_gets_the_usual_mode(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        output.emit("x", tmp_path / "report")
    finally:
        os.umask(old)
    assert (tmp_path / "report").stat().st_mode & 0o777 == 0o640


def test_a_link_stays_and_its_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    output.emit("new", tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_text() == "new"


def test_a_device_is_written_to_and_not_replaced() -> None:
    output.emit("x", Path("/dev/null"))
    assert Path("/dev/null").is_char_device()


def test_a_failure_leaves_the_old_file_and_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "report").write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(output.OutputError, match="No space left on device; the result is lost, name"):
        output.emit("new", tmp_path / "report")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


def test_bytes_that_were_not_utf_8_come_out_as_they_were(tmp_path: Path) -> None:
    output.emit("\udcff", tmp_path / "report")
    assert (tmp_path / "report").read_bytes() == b"\xff"
