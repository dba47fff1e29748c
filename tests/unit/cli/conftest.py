"""The command line over a small catalogue, in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

import small_catalogue
from cli_types import Done, Run
from tpu_image import catalogue, cli


@pytest.fixture(autouse=True)
def _small_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "requirements", lambda: small_catalogue.REQUIREMENTS)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """A function that runs a command line."""

    def run(*arguments: str | Path) -> Done:
        status = cli.main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return Done(status, captured.out, captured.err)

    return run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty root."""
    folder = tmp_path / "root"
    folder.mkdir()
    return folder


@pytest.fixture
def good_root(root: Path) -> Path:
    """A root that holds everything."""
    (root / "etc/udev/rules.d").mkdir(parents=True)
    (root / "etc/greeting").write_text("hello\n")
    (root / "etc/udev/rules.d/99-tpu.rules").write_text("")
    return root
