"""The recipe of a boot, short of booting: what it takes for an image, and what it makes of one that goes away."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import jsonschema
import pytest

from lab_results import RESULT
from tpu_image.catalogue.requirement import Profile, Status
from tpu_image.disks.errors import DiskError
from tpu_image.lab import accelerator, chips, qemu
from tpu_image.lab import boot as lab
from tpu_image.lab.accelerator import Accelerator
from tpu_image.lab.boot import Attempt, Request, boot
from tpu_image.lab.errors import LabError
from tpu_image.lab.guest_report import GuestReportBuilder
from tpu_image.lab.result import Outcome
from tpu_image.lab.session import Ended
from tpu_image.report.boot import document
from tpu_image.report.boot_schema import boot_schema


def request_for(image: Path, *run: str) -> Request:
    return Request(image, chips.parse("v6e:1"), Profile(), run=run)


@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "/dev/null"])
def test_what_is_no_image_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def never(*_: object) -> NoReturn:
        raise AssertionError("reading it would not end")

    monkeypatch.setattr(lab, "sha256_of", never)
    image = tmp_path / "image" if kind == "pipe" else Path(kind)
    if kind == "pipe":
        os.mkfifo(image)
    with pytest.raises(DiskError, match="is neither a file nor a block device"):
        boot(request_for(image))


def test_what_is_no_disk_is_refused_before_it_is_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> NoReturn:
        raise AssertionError("that may take minutes")

    monkeypatch.setattr(lab, "sha256_of", never)
    (tmp_path / "image").write_text("A text.\n" * 1000)
    with pytest.raises(DiskError, match="file system"):
        boot(request_for(tmp_path / "image"))


def test_a_machine_without_a_resolver_is_told_to_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "image").touch()
    (tmp_path / "resolv.conf").symlink_to("nowhere")
    monkeypatch.setattr(lab, "RESOLVER", str(tmp_path / "resolv.conf"))
    with pytest.raises(LabError, match="its link leads nowhere; make one; an empty file will do"):
        boot(request_for(tmp_path / "image"))


def test_an_image_that_goes_away_during_its_boot_is_judged_as_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = tmp_path / "image"
    image.write_bytes(b"disk")
    session = SimpleNamespace(
        guest=GuestReportBuilder(), ended_after=1.0, console=SimpleNamespace(stages=[], text="")
    )

    def attempt(*_: object) -> Attempt:
        image.unlink()
        return Attempt(RESULT.emulator, session, Ended(Outcome.REPORTED), ())  # type: ignore[arg-type]

    monkeypatch.setattr(lab, "require_bootable", lambda _: None)
    monkeypatch.setattr(qemu, "find", lambda: None)
    monkeypatch.setattr(accelerator, "choose", lambda _: Accelerator("tcg", "a test"))
    monkeypatch.setattr(lab, "_attempt", attempt)
    result = boot(request_for(image, "true"))
    assert (result.artefact.size, result.artefact.unchanged) == (4, False)
    statuses = {verdict.requirement: verdict.status for verdict in result.verdicts}
    assert (statuses["lab.artefact"], statuses["lab.run"]) == (Status.FAIL, Status.UNKNOWN)
    jsonschema.Draft202012Validator(boot_schema()).validate(document(result))
