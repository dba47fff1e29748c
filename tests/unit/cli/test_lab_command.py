"""``tpu-image lab``: which QEMU there is, and a private one where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli_types import Run
from tpu_image.lab import accelerator, qemu
from tpu_image.lab.accelerator import Accelerator
from tpu_image.lab.errors import LabError
from tpu_image.lab.qemu import Qemu


def test_the_status_names_the_qemu_and_the_accelerator(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qemu, "find", lambda: Qemu(("qemu",), "11.1.3", Path("/cache/qemu")))
    monkeypatch.setattr(accelerator, "choose", lambda _: Accelerator("tcg", "this machine has no /dev/kvm"))
    done = run("lab", "status")
    assert (done.status, done.out) == (
        0,
        "QEMU 11.1.3: /cache/qemu\naccelerator: tcg (this machine has no /dev/kvm)\n",
    )


def test_without_a_qemu_the_status_says_what_to_do(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def find() -> Qemu:
        raise LabError("qemu-system-x86_64 is not installed", "run: tpu-image lab setup")

    monkeypatch.setattr(qemu, "find", find)
    done = run("lab", "status")
    assert (done.status, done.out) == (2, "")
    assert done.err == "tpu-image: qemu-system-x86_64 is not installed; run: tpu-image lab setup\n"


def test_setup_says_where_the_qemu_is(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Qemu(("qemu",), "11.1.3", Path("/cache/qemu"))
    monkeypatch.setattr("tpu_image.lab.setup.setup", lambda _progress, verbose: made)
    done = run("lab", "setup")
    assert (done.status, done.out) == (0, "QEMU 11.1.3: /cache/qemu\n")


def test_without_a_command_the_help_is_shown_as_it_is(run: Run) -> None:
    done = run("lab")
    assert (done.status, done.out) == (2, "")
    assert "\nCommands:\n  setup " in done.err
