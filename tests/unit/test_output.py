from __future__ import annotations

import os
from pathlib import Path

import pytest

from tpu_image import output
from tpu_image.output import OutputError, require_place


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


def test_what_could_not_be_written_later_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tmp_path / "image"
    image.touch()
    link = tmp_path / "link"
    link.symlink_to(image)
    for wrong, why in (
        (image, "would replace what it is about"),
        (link, "would replace what it is about"),
    ):
        with pytest.raises(OutputError, match=why):
            require_place(None, wrong, keep=image)
    require_place(None, tmp_path / "x", Path("/dev/null"), keep=image)
    require_place(tmp_path / "x", keep=tmp_path / "no target")
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(OutputError, match="standard output is closed"):
        require_place(None, keep=image)
