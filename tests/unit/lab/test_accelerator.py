"""KVM is taken where a guest ran with it, and for no lesser reason."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from tpu_image.lab import accelerator
from tpu_image.lab.accelerator import MARKER, boot_sector, choose
from tpu_image.lab.errors import LabError
from tpu_image.lab.qemu import Qemu


def qemu(tmp_path: Path, program: str) -> Qemu:
    """A stand-in for QEMU whose first serial port is the program's descriptor $port."""
    path = tmp_path / "qemu"
    find = 'port=$(echo "$*" | sed -n "s/.*fd=\\([0-9]*\\).*/\\1/p")'
    path.write_text(f"#!/bin/bash\n{find}\n{program}\n")
    path.chmod(0o755)
    return Qemu((str(path),), "11.1.3")


@pytest.fixture
def device(tmp_path: Path) -> str:
    path = tmp_path / "kvm"
    path.touch()
    return str(path)


def test_without_the_device_there_is_no_kvm(tmp_path: Path) -> None:
    chosen = choose(qemu(tmp_path, "exit 1"), str(tmp_path / "absent"))
    assert chosen.name == "tcg"
    assert chosen.reason.startswith("this machine has no ")


def test_a_guest_that_wrote_its_marker_proves_kvm(tmp_path: Path, device: str) -> None:
    chosen = choose(qemu(tmp_path, 'printf SeaBIOSK >&"$port"; sleep 60'), device)
    assert chosen == ("kvm", "a test guest ran with it")


@pytest.mark.parametrize("program", ["exit 1", 'printf other >&"$port"; sleep 60', "exec sleep 60"])
def test_a_guest_that_wrote_none_proves_nothing(
    tmp_path: Path, device: str, program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accelerator, "SECONDS", 1.0)
    chosen = choose(qemu(tmp_path, program), device)
    assert chosen.name == "tcg"
    assert chosen.reason.endswith("is there, but a test guest did not run with it")


def test_without_room_for_its_disk_the_message_says_where(
    tmp_path: Path, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    found = qemu(tmp_path, "true")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(LabError, match=f"^{tmp_path}: File too large; set TMPDIR"):
            choose(found, device)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_the_boot_sector_is_one() -> None:
    sector = boot_sector()
    assert len(sector) == 512
    assert sector[510:] == b"\x55\xaa"
    assert MARKER in sector[:16]
