"""The boot runtime as a program: whatever it is started with and without, it says one line and a status."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from metadata_faults import metadata as served
from tpu_image.runtime.__main__ import main


@pytest.fixture(autouse=True)
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with served({"key": "value"}) as running:
        monkeypatch.setenv("GCE_METADATA_HOST", running.host)
        yield


def test_a_value_without_a_place_for_it_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout", None)
    assert main(["get-metadata", "key"]) == os.EX_CANTCREAT
    assert capsys.readouterr().err == (
        "tpu-image: standard output is closed: there is no place for the value\n"
    )
    assert main(["no such task"]) == os.EX_USAGE


def test_a_problem_is_never_told_in_place_of_the_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr", None)
    assert main(["get-metadata", "none"]) == os.EX_NOINPUT
    assert capsys.readouterr().out == ""


def test_a_key_that_is_not_utf_8_is_not_set(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["get-metadata", os.fsdecode(b"\xff"), os.fsdecode(b"\xfe")]) == os.EX_OK
    assert capfdbinary.readouterr().out == b"\xfe\n"
