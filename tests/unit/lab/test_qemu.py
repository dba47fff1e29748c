"""QEMU is taken only where it can emulate TPUs, and the message says what to do otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpu_image.cache_folder import CacheError
from tpu_image.lab import qemu
from tpu_image.lab.errors import LabError

VFIO = "vfio-user-pci options:"


def program(path: Path, version: str, devices: str = VFIO) -> Path:
    """A stand-in for QEMU that answers what it is asked."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f'#!/bin/sh\ncase "$*" in *--version*) echo "{version}" ;; *) echo "{devices}" ;; esac\n'
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where QEMU would be on PATH; there is no private one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(qemu, "PROGRAM", "qemu-of-the-test")
    return tmp_path / "bin/qemu-of-the-test"


def test_one_on_path_that_is_new_enough_is_taken(on_path: Path) -> None:
    program(on_path, "QEMU emulator version 10.2.1 (Ubuntu)")
    found = qemu.find()
    assert (found.command, found.version, found.root) == ((str(on_path),), "10.2.1", Path("/"))


@pytest.mark.parametrize(
    ("version", "devices", "reason"),
    [
        ("QEMU emulator version 7.2.19 (Debian)", VFIO, "QEMU 7.2.19, older than 10.1"),
        ("QEMU emulator version 10.0.2", VFIO, "QEMU 10.0.2, older than 10.1"),
        ("QEMU emulator version 10.1.0", "no such device", "without the device vfio-user-pci"),
        ("something else", VFIO, "does not tell its version"),
    ],
)
def test_one_that_will_not_do_is_named_with_what_to_do(
    on_path: Path, version: str, devices: str, reason: str
) -> None:
    program(on_path, version, devices)
    with pytest.raises(LabError, match=reason) as refused:
        qemu.find()
    assert refused.value.remedy == "install QEMU 10.1 or newer, or run: tpu-image lab setup"


def test_one_that_has_no_tpus_to_emulate_may_be_older(on_path: Path) -> None:
    program(on_path, "QEMU emulator version 7.2.19 (Debian)", "no such device")
    assert qemu.find(tpus=False).version == "7.2.19"
    program(on_path, "QEMU emulator version 6.2.0", "no such device")
    with pytest.raises(LabError, match=r"6\.2\.0, older than 7\.2; install QEMU 7\.2 or newer, or run"):
        qemu.find(tpus=False)


def test_one_that_is_killed_while_it_is_asked_is_not_said_to_lack_something(on_path: Path) -> None:
    program(on_path, "QEMU emulator version 10.2.1", '"; kill -KILL $$; echo "')
    with pytest.raises(LabError, match="was ended by signal 9 when asked"):
        qemu.find()


def test_where_there_is_none_the_message_says_so(on_path: Path) -> None:
    with pytest.raises(LabError, match="qemu-of-the-test is not installed"):
        qemu.find()


def test_the_private_one_is_taken_where_that_on_path_is_too_old(on_path: Path) -> None:
    program(on_path, "QEMU emulator version 7.2.19")
    root = qemu.private_root()
    program(root / "usr/bin/qemu-of-the-test", "never run as it is")
    program(root / "usr/lib64/ld-linux-x86-64.so.2", "QEMU emulator version 11.1.3")
    found = qemu.find()
    assert (found.root, found.version) == (root, "11.1.3")
    assert found.command[1] == "--library-path"
    assert found.environment["QEMU_MODULE_DIR"].startswith(str(root))


def test_a_private_root_without_its_loader_is_incomplete(on_path: Path) -> None:
    program(qemu.private_root() / "usr/bin/qemu-of-the-test", "QEMU emulator version 11.1.3")
    with pytest.raises(LabError, match="is incomplete"):
        qemu.find()


def test_a_private_root_that_somebody_else_could_have_put_there_is_not_run(on_path: Path) -> None:
    root = qemu.private_root()
    program(root / "usr/bin/qemu-of-the-test", "never run as it is")
    program(root / "usr/lib64/ld-linux-x86-64.so.2", "QEMU emulator version 11.1.3")
    root.chmod(0o777)
    with pytest.raises(CacheError, match="somebody else can write to it"):
        qemu.find()


def test_a_relative_cache_folder_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert qemu.private_root() == tmp_path / ".cache/tpu-image/qemu"


def test_uefi_firmware_is_looked_for_below_the_root_of_the_qemu(tmp_path: Path) -> None:
    found = qemu.Qemu(("qemu",), "11.1.3", tmp_path)
    with pytest.raises(LabError, match="OVMF is not installed"):
        found.uefi()
    for name in qemu.UEFI_FIRMWARE[1]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert found.uefi() == tuple(tmp_path / name for name in qemu.UEFI_FIRMWARE[1])
