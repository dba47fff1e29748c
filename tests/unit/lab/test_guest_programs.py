"""What runs inside the guest: old Pythons take it, and it tells what it finds."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from disk_tools import run
from tpu_image.catalogue.hardware import generation
from tpu_image.catalogue.requirement import Platform, Profile
from tpu_image.checker import main as check
from tpu_image.lab import guest, payload
from tpu_image.lab.guest import binding, probe, vfio
from tpu_image.lab.guest_report import GuestReportBuilder
from tpu_image.lab.messages import Message
from tpu_image.lab.payload import Payload, checker_arguments
from tpu_image.lab.terminal import Terminal
from tpu_image.trees.memory import File, MemoryTree, Symlink
from tpu_image.trees.overlay import Overlay

PROGRAMS = [name for name in guest.FILES if name.endswith(".py")]
FOLDER = Path(guest.__file__).parent


@pytest.mark.parametrize("name", PROGRAMS)
def test_python_3_8_takes_it_without_this_package(name: str) -> None:
    tree = ast.parse(guest.read(name), feature_version=(3, 8))
    imported = {
        alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
    } | {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {module.partition(".")[0] for module in imported} <= {*sys.stdlib_module_names, "__future__"}


def test_the_shell_takes_the_start() -> None:
    run("shellcheck", FOLDER / "start.sh")


def test_a_process_that_may_lock_memory_says_so() -> None:
    told = json.loads(run(sys.executable, "-I", FOLDER / "locked_memory.py"))
    assert told["kind"] == "locked-memory"
    assert isinstance(told["ok"], bool)


def test_a_process_that_may_not_says_why() -> None:
    user = {"user": 65534, "group": 65534, "extra_groups": ()} if os.geteuid() == 0 else {}
    done = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -l 1024 && exec python3 -I -c "$0"', guest.read("locked_memory.py")],
        stdout=subprocess.PIPE,
        check=True,
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
        **user,  # type: ignore[call-overload]
    )
    told = json.loads(done.stdout)
    assert not told["ok"]
    assert told["detail"].startswith("Cannot allocate memory; limit 1024 KiB")


def test_a_function_in_no_group_is_one_failed_step(capsys: pytest.CaptureFixture[str]) -> None:
    vfio.main(["ffff:ff:1f.7"])
    builder = GuestReportBuilder()
    (line,) = capsys.readouterr().out.splitlines()
    builder.take(Message({**json.loads(line)}))
    assert json.loads(line)["name"] == "find group"
    assert builder.build().faults == ()


def test_requests_are_those_of_the_kernels_headers() -> None:
    assert (vfio.SET_IOMMU, vfio.GROUP_GET_DEVICE_FD, vfio.DEVICE_RESET) == (0x3B66, 0x3B6A, 0x3B6F)
    assert (vfio.IOMMU_MAP_DMA, vfio.BIND_IOMMUFD, vfio.IOAS_ALLOC) == (0x3B71, 0x3B76, 0x3B81)


@pytest.mark.parametrize(("script", "counted"), [("exit 0", True), ("exit 6", False)])
def test_functions_tell_when_they_were_bound_and_what_that_takes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    script: str,
    counted: bool,
) -> None:
    (tmp_path / "marks").mkdir()
    (tmp_path / "nodes").mkdir()
    for group in ("3", "12", "40"):
        (tmp_path / "marks" / group).symlink_to(f"/sys/kernel/iommu_groups/{group}/devices/0000:00:{group}.0")
    for group in ("3", "12"):
        (tmp_path / "nodes" / group).touch()
    (tmp_path / "bind").write_text(f"#!/bin/sh\necho $1 >> {tmp_path}/asked\n{script}\n")
    (tmp_path / "bind").chmod(0o755)
    monkeypatch.setattr(binding, "MARKS", str(tmp_path / "marks"))
    monkeypatch.setattr(binding, "NODES", str(tmp_path / "nodes"))
    monkeypatch.setattr(binding, "UNBIND", str(tmp_path / "unbind"))
    assert binding.main(str(tmp_path / "bind")) == (not counted)
    assert (tmp_path / "unbind").read_text() == "0000:00:12.0"
    assert (tmp_path / "asked").read_text() == "0000:00:12.0\n"
    captured = capsys.readouterr()
    assert (captured.err == "") is counted
    builder = GuestReportBuilder()
    for line in captured.out.splitlines():
        builder.take(Message({**json.loads(line)}))
    report = builder.build()
    assert report.faults == ()
    assert [task.unit for task in report.tasks] == ["binding of 0000:00:12.0", "binding of 0000:00:3.0"]
    assert all((task.cpu is not None) is counted for task in report.tasks)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1min", 60), ("2.345s", 2.345), ("678ms", 0.678), ("12us", 12e-6), ("1h", 3600), ("?", 0)],
)
def test_time_spans_are_read_as_systemd_writes_them(text: str, seconds: float) -> None:
    assert probe.duration(text) == pytest.approx(seconds)


def test_boots_are_counted_and_the_last_alone_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs: list[list[str]] = []
    monkeypatch.setattr(probe, "FOLDER", str(tmp_path))
    monkeypatch.setattr(probe, "BOOTS_DONE", str(tmp_path / "boots-done"))
    monkeypatch.setattr(probe, "STEPS", (("identify", probe.identify), ("commands", probe.commands)))
    monkeypatch.setattr(subprocess, "run", lambda command, **_: programs.append(command))
    (tmp_path / "settings.json").write_text(payload.settings(Payload(Profile(), run=("echo here",), boots=2)))
    kinds = []
    for name in ("first", "second"):
        (tmp_path / name).touch()
        probe.main(str(tmp_path / name))
        kinds.append([json.loads(line)["kind"] for line in (tmp_path / name).read_text().splitlines()])
    assert kinds == [
        ["step-begins", "run", "restart"],
        ["step-begins", "system", "step-begins", "run", "end"],
    ]
    assert [command[1] for command in programs] == ["reboot", "poweroff"]


def test_the_payload_is_put_where_systemd_starts_it() -> None:
    overlay = Overlay(MemoryTree())
    payload.write(Payload(Profile(), run=("id",)), overlay)
    assert overlay.written["/etc/systemd/system/multi-user.target.wants/tpulab.service"] == Symlink(
        "/etc/systemd/system/tpulab.service"
    )
    settings = json.loads(overlay.read_text("/etc/tpu-image-lab/settings.json"))
    assert settings["run"] == ["id"]
    assert [0x1AE0, 0x6F] in settings["ids"]
    assert isinstance(overlay.written["/etc/tpu-image-lab/tpu-image.pyz"], File)
    assert payload.CONSOLE_LOGIN not in overlay.written


def test_under_software_emulation_systemd_is_more_patient_and_else_as_it_was() -> None:
    patient, usual = Overlay(MemoryTree()), Overlay(MemoryTree())
    payload.write(Payload(Profile(), patient=True), patient)
    payload.write(Payload(Profile()), usual)
    assert "DefaultDeviceTimeoutSec=15min" in patient.read_text(payload.TIMEOUTS)
    assert payload.TIMEOUTS not in usual.written


def test_a_shell_gets_a_login_on_the_console() -> None:
    overlay = Overlay(MemoryTree())
    payload.write(Payload(Profile(), shell=Terminal()), overlay)
    assert "--autologin root" in overlay.read_text(payload.CONSOLE_LOGIN)
    assert "Ctrl-]" in overlay.read_text(payload.PROFILE)


def test_the_checker_inside_gets_the_whole_profile(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    profile = Profile(
        platform=Platform.GKE,
        generations=(generation("v6e"), generation("tpu7x")),
        telemetry=True,
        device_group="tpu",
        agent_elsewhere=True,
        waivers={"machine.thp": "known = accepted"},
    )
    check([str(tmp_path), *checker_arguments(profile)])
    told = json.loads(capsys.readouterr().out)
    assert told["profile"] == {
        "platform": "gke",
        "generations": ["v6e", "tpu7x"],
        "architecture": "x86_64",
        "telemetry": True,
        "device_group": "tpu",
        "agent": "elsewhere",
        "waive": {"machine.thp": "known = accepted"},
    }
    assert all(verdict["requirement"].startswith("machine.") for verdict in told["verdicts"])
