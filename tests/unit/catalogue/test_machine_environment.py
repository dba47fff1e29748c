"""The settings of a running machine."""

from __future__ import annotations

import pytest

from tpu_image.catalogue.environment import MachineEnvironment
from tpu_image.catalogue.requirement import Profile, Status, Verdict
from tpu_image.formats import tpu_env
from tpu_image.runtime import system_environment
from tpu_image.trees.memory import File, MemoryTree, Node

SYSTEM_ENVIRONMENT = system_environment.with_storage_timeouts(system_environment.with_cloudsdk_python(""))
SETTINGS = {"TYPE": "V6E", "WORKER_ID": "0", "UID": "1234"}


def machine(settings: str | None, *, mode: int = 0o644, uid: int = 2000) -> dict[str, Node]:
    nodes: dict[str, Node] = {
        "/etc/environment": File(SYSTEM_ENVIRONMENT.encode()),
        "/etc/passwd": File(
            b"root:x:0:0::/root:/bin/sh\ntpu-runtime:x:2000:2000::/home/tpu-runtime:/bin/sh\n"
        ),
        "/sys/bus/pci/devices/0000:00:04.0/vendor": File(b"0x1ae0\n"),
        "/sys/bus/pci/devices/0000:00:04.0/device": File(b"0x006f\n"),
    }
    if settings is not None:
        nodes["/home/tpu-runtime/tpu-env"] = File(settings.encode(), mode, uid, uid)
    return nodes


def observe(nodes: dict[str, Node]) -> Verdict:
    return MachineEnvironment().observe(MemoryTree(nodes), Profile())


def test_the_file_that_the_runtime_writes_passes() -> None:
    assert observe(machine(tpu_env.serialise(SETTINGS))).status is Status.PASS


def test_a_missing_file_is_a_failure_where_there_is_a_tpu_and_no_pass_where_there_is_none() -> None:
    nodes = machine(None)
    assert observe(nodes).status is Status.FAIL
    nodes["/sys/bus/pci/devices/0000:00:04.0/device"] = File(b"0x0042\n")
    assert observe(nodes).status is Status.SKIP


FAULTS = [
    ('TYPE="V6E"\nWORKER_ID=""\n', Status.WARN, "WORKER_ID is blank: this is not worker 0"),
    ('TYPE="V6E"\n', Status.WARN, "WORKER_ID is not set: this is not worker 0"),
    ('TYPE="$(id)"\nWORKER_ID="0"\n', Status.FAIL, "line 1: a shell expands the $"),
    ('WORKER_ID="0"\nUID="1234"\n', Status.FAIL, "ends at UID"),
    ("", Status.FAIL, "holds no variable"),
    ("<!DOCTYPE html>\n", Status.FAIL, "line 1"),
]


@pytest.mark.parametrize(("settings", "status", "reason"), FAULTS, ids=[reason for *_, reason in FAULTS])
def test_a_fault_of_the_file_is_named(settings: str, status: Status, reason: str) -> None:
    verdict = observe(machine(settings))
    assert (verdict.status, reason in verdict.message) == (status, True), verdict.message


@pytest.mark.parametrize(
    ("mode", "uid", "reason"),
    [
        (0o666, 2000, "can write"),
        (0o600, 2000, "not every user can read"),
        (0o644, 1000, "belongs to uid 1000"),
    ],
)
def test_a_wrong_mode_or_owner_is_named(mode: int, uid: int, reason: str) -> None:
    verdict = observe(machine(tpu_env.serialise(SETTINGS), mode=mode, uid=uid))
    assert (verdict.status, reason in verdict.message) == (Status.FAIL, True), verdict.message


def test_what_the_system_environment_lacks_is_named() -> None:
    nodes = machine(tpu_env.serialise(SETTINGS))
    nodes["/etc/environment"] = File(SYSTEM_ENVIRONMENT.replace("SECS=600", "SECS=6").encode())
    verdict = observe(nodes)
    assert verdict.status is Status.FAIL
    assert verdict.message == "/etc/environment lacks GCS_WRITE_REQUEST_TIMEOUT_SECS"
