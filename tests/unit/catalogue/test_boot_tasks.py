"""What runs at every boot: found wherever it is started, planned once, told apart from what runs once."""

from __future__ import annotations

import re
import time

import pytest

import case_trees
from tpu_image.catalogue import boot_tasks, environment, files, metadata, runtime_archive, storage_timeouts
from tpu_image.catalogue.requirement import Profile, Requirement, Status, Verdict
from tpu_image.runtime import settings
from tpu_image.trees.memory import File, MemoryTree, Node, Symlink
from tpu_image.trees.overlay import Overlay

IMAGE_REQUIREMENTS = [
    requirement
    for module in (environment, metadata, storage_timeouts)
    for requirement in module.REQUIREMENTS
    if not requirement.live
]
TPU_ENV, CLOUDSDK_PYTHON, SCRIPT, TIMEOUTS = IMAGE_REQUIREMENTS
UNIT = "/usr/lib/systemd/system/{}.service"


def debian() -> dict[str, Node]:
    return dict(case_trees.start("debian"))


def text(content: str, mode: int = 0o644) -> File:
    return File(content.encode(), mode)


def applied(nodes: dict[str, Node], *requirements: Requirement) -> dict[str, Node]:
    overlay = Overlay(MemoryTree(nodes))
    for requirement in requirements or IMAGE_REQUIREMENTS:
        requirement.plan(overlay, Profile())
    result = dict(nodes)
    for path, node in overlay.written.items():
        if node is None:
            del result[path]
        else:
            result[path] = node
    return result


def judge(requirement: Requirement, nodes: dict[str, Node]) -> Verdict:
    return requirement.inspect(MemoryTree(nodes), Profile())


@pytest.mark.parametrize("requirement", IMAGE_REQUIREMENTS, ids=lambda r: r.id)
def test_what_is_planned_passes_and_planning_again_writes_nothing(requirement: Requirement) -> None:
    nodes = debian()
    assert judge(requirement, nodes).status is Status.FAIL
    nodes = applied(nodes, requirement)
    assert judge(requirement, nodes).status is Status.PASS
    assert applied(nodes, requirement) == nodes


def test_the_documents_paths_are_executable_and_roots() -> None:
    nodes = applied(debian())
    for path in (environment.SCRIPT, metadata.SCRIPT, storage_timeouts.SCRIPT, settings.ARCHIVE_PATH):
        node = nodes[path]
        assert isinstance(node, File)
        assert (node.mode, node.uid, node.gid) == (0o755, 0, 0)


def test_units_are_enabled_in_the_place_that_systemctl_uses() -> None:
    link = applied(debian())["/etc/systemd/system/multi-user.target.wants/tpu-image-environment.service"]
    assert link == Symlink("/usr/lib/systemd/system/tpu-image-environment.service")


def test_a_mask_is_named_and_taken_away_by_apply() -> None:
    mask = "/etc/systemd/system/tpu-image-environment.service"
    nodes = applied(debian()) | {mask: Symlink("/dev/null")}
    assert "masked" in judge(TPU_ENV, nodes).message
    again = applied(nodes)
    assert mask not in again
    assert judge(TPU_ENV, again).status is Status.PASS


def test_a_unit_that_is_not_enabled_is_named() -> None:
    nodes = applied(debian())
    del nodes["/etc/systemd/system/multi-user.target.wants/tpu-image-environment.service"]
    assert "not enabled" in judge(TPU_ENV, nodes).message
    assert judge(TPU_ENV, applied(nodes)).status is Status.PASS


def test_a_drop_in_that_takes_the_command_away_is_seen() -> None:
    drop_in = "/etc/systemd/system/tpu-image-environment.service.d/site.conf"
    nodes = applied(debian()) | {drop_in: text("[Service]\nExecStart=\nExecStart=/usr/bin/true\n")}
    assert "does something else" in judge(TPU_ENV, nodes).message


def modules_checksum(content: bytes) -> bytes:
    return content.split(b"\n", 2)[1].split()[-2]


DAMAGES = [
    (lambda content: content[:-1], Status.FAIL, "is damaged"),
    (lambda content: content.replace(b"def main(", b"def Main("), Status.FAIL, "is damaged"),
    (lambda content: b"PK\x03\x04", Status.FAIL, "is not tpu-image's"),
    (lambda content: b"", Status.FAIL, "is not tpu-image's"),
    (
        lambda content: content.replace(modules_checksum(content), b"00000000", 1),
        Status.WARN,
        "another version",
    ),
]


@pytest.mark.parametrize(("damage", "status", "reason"), DAMAGES, ids=[reason for *_, reason in DAMAGES])
def test_an_archive_that_is_not_whole_or_not_this_versions_is_named_and_replaced(
    damage: object, status: Status, reason: str
) -> None:
    assert callable(damage)
    nodes = applied(debian())
    archive = nodes[settings.ARCHIVE_PATH]
    assert isinstance(archive, File)
    nodes[settings.ARCHIVE_PATH] = File(damage(archive.content), 0o755)
    verdict = judge(TPU_ENV, nodes)
    assert (verdict.status, reason in verdict.message) == (status, True), verdict.message
    assert applied(nodes)[settings.ARCHIVE_PATH] == archive


@pytest.mark.parametrize("path", [settings.ARCHIVE_PATH, settings.INTERPRETER])
def test_a_missing_program_is_named(path: str) -> None:
    nodes = applied(debian())
    del nodes[path]
    assert f"{path}" in judge(TPU_ENV, nodes).message


def test_an_archive_that_users_cannot_read_is_opened_again() -> None:
    nodes = applied(debian())
    archive = nodes[settings.ARCHIVE_PATH]
    assert isinstance(archive, File)
    closed = nodes | {settings.ARCHIVE_PATH: File(archive.content, 0o700)}
    assert "owner alone" in judge(SCRIPT, closed).message
    assert applied(closed) == nodes


CRON: dict[str, Node] = {"/usr/sbin/cron": text("", 0o755)}
CLOUD_INIT: dict[str, Node] = {"/usr/bin/cloud-init": text("#!/usr/bin/python3\n", 0o755)}
DOCUMENTS_SCRIPT = """\
grep -q CLOUDSDK_PYTHON /etc/environment || echo "CLOUDSDK_PYTHON=/usr/bin/python3" >> /etc/environment
curl -s 'http://metadata.google.internal/computeMetadata/v1/instance/attributes/tpu-env' > /tmp/tpu-env.yaml
"""
SITE_UNIT = "[Service]\nType=oneshot\nExecStart={}\n\n[Install]\nWantedBy=multi-user.target\n"
ENABLE_SITE = {"/etc/systemd/system/multi-user.target.wants/site.service": Symlink("../site.service")}
OURS = "/var/scripts/configure-env-vars.sh"


def site(command: str) -> dict[str, Node]:
    return {"/etc/systemd/system/site.service": text(SITE_UNIT.format(command)), **ENABLE_SITE}


EVERY_BOOT = [
    ("a unit of the site's", site(f"/bin/bash {OURS}")),
    ("a unit that goes through a shell", site(f"/bin/sh -c 'sleep 1; {OURS}'")),
    ("a unit that runs the archive", site(f"/usr/bin/python3 {settings.ARCHIVE_PATH} environment")),
    ("rc.local", {"/etc/rc.local": text(f"#!/bin/sh\nbash {OURS}\nexit 0\n", 0o755)}),
    ("cron", {"/etc/cron.d/tpu": text(f"@reboot root bash {OURS}\n"), **CRON}),
    ("bootcmd", {"/etc/cloud/cloud.cfg.d/tpu.cfg": text(f"bootcmd:\n- [bash, {OURS}]\n"), **CLOUD_INIT}),
    (
        "a per-boot script",
        {"/var/lib/cloud/scripts/per-boot/tpu": text(f"#!/bin/sh\nexec sh {OURS}\n", 0o755), **CLOUD_INIT},
    ),
]


def without_unit() -> dict[str, Node]:
    nodes = applied(debian())
    del nodes[UNIT.format("tpu-image-environment")]
    return nodes


@pytest.mark.parametrize("start", [start for _, start in EVERY_BOOT], ids=[name for name, _ in EVERY_BOOT])
def test_whatever_starts_our_program_at_every_boot_will_do(start: dict[str, Node]) -> None:
    verdict = judge(TPU_ENV, without_unit() | start)
    assert verdict.status is Status.PASS, verdict.message


@pytest.mark.parametrize("start", [start for _, start in EVERY_BOOT[:2] + EVERY_BOOT[3:]], ids=str)
def test_the_documents_own_script_is_taken_with_a_warning(start: dict[str, Node]) -> None:
    verdict = judge(TPU_ENV, without_unit() | start | {OURS: text(DOCUMENTS_SCRIPT, 0o444)})
    assert verdict.status is Status.WARN, verdict.message
    assert "not tpu-image's" in verdict.message


NOT_EVERY_BOOT = [
    (
        "a unit that nothing starts",
        {"/etc/systemd/system/site.service": text(SITE_UNIT.format(OURS))},
        "nothing",
    ),
    (
        "a unit for the first boot",
        site(OURS) | {"/etc/systemd/system/site.service.d/x.conf": text("[Unit]\nConditionFirstBoot=yes\n")},
        "nothing",
    ),
    ("rc.local that is not executable", {"/etc/rc.local": text(f"bash {OURS}\n")}, "nothing"),
    ("rc.local with a comment", {"/etc/rc.local": text(f"# bash {OURS}\n", 0o755)}, "nothing"),
    ("cron at another time", {"/etc/cron.d/tpu": text(f"0 4 * * * root bash {OURS}\n"), **CRON}, "nothing"),
    ("cron without cron", {"/etc/cron.d/tpu": text(f"@reboot root bash {OURS}\n")}, "nothing"),
    ("bootcmd without cloud-init", {"/etc/cloud/cloud.cfg": text(f"bootcmd:\n- {OURS}\n")}, "nothing"),
    (
        "runcmd",
        {"/etc/cloud/cloud.cfg.d/tpu.cfg": text(f"runcmd:\n  - bash {OURS}\n"), **CLOUD_INIT},
        "once per instance",
    ),
    (
        "runcmd in a seed",
        {
            "/var/lib/cloud/seed/nocloud/user-data": text(f"#cloud-config\nruncmd: [[bash, {OURS}]]\n"),
            **CLOUD_INIT,
        },
        "once per instance",
    ),
]


@pytest.mark.parametrize(
    ("start", "reason"), [case[1:] for case in NOT_EVERY_BOOT], ids=[c[0] for c in NOT_EVERY_BOOT]
)
def test_what_does_not_run_at_every_boot_is_not_enough(start: dict[str, Node], reason: str) -> None:
    verdict = judge(TPU_ENV, without_unit() | start)
    assert verdict.status is Status.FAIL, verdict.message
    assert reason in verdict.message


def test_scripts_that_start_one_another_without_end_are_followed_within_bounds() -> None:
    lines = "".join(f"bash /opt/{number}.sh\n" for number in range(3000))
    scripts: dict[str, Node] = {f"/opt/{number}.sh": text(lines, 0o755) for number in range(300)}
    nodes = debian() | {"/etc/rc.local": text(lines, 0o755)} | scripts
    started = time.monotonic()
    assert judge(TPU_ENV, nodes).status is Status.FAIL
    assert time.monotonic() - started < 10


def test_a_script_that_is_started_and_missing_is_named() -> None:
    assert "which does not exist" in judge(TPU_ENV, debian() | site(f"bash {OURS}")).message


STATIC = "".join(f"{name}={seconds}\n" for name, seconds in settings.STORAGE_TIMEOUTS.items())


def test_time_outs_that_stand_in_the_file_need_no_unit() -> None:
    nodes = debian() | {"/etc/environment": text(STATIC)}
    assert judge(TIMEOUTS, nodes).status is Status.PASS
    assert applied(nodes, TIMEOUTS) == nodes


def test_a_time_out_that_is_too_short_is_named_with_its_line() -> None:
    nodes = debian() | {"/etc/environment": text("A=1\n" + STATIC.replace("=600", "=30"))}
    verdict = judge(TIMEOUTS, nodes)
    assert "GCS_WRITE_REQUEST_TIMEOUT_SECS" in verdict.message
    assert "GCS_READ" not in verdict.message
    assert (verdict.evidence[0].line, verdict.evidence[0].found) == (6, "30")
    assert judge(TIMEOUTS, applied(nodes, TIMEOUTS)).status is Status.PASS


def test_a_unit_that_sets_time_outs_at_boot_is_enough() -> None:
    nodes = applied(debian(), TIMEOUTS) | {"/etc/environment": text("")}
    assert judge(TIMEOUTS, nodes).status is Status.PASS
    assert judge(CLOUDSDK_PYTHON, nodes).status is Status.PASS


@pytest.mark.parametrize(
    ("value", "status"),
    [("/usr/bin/python3", Status.PASS), ("python3", Status.PASS), ("/opt/missing/python3", Status.FAIL)],
)
def test_a_python_for_gcloud_must_exist(value: str, status: Status) -> None:
    nodes = debian() | {"/etc/environment": text(f"CLOUDSDK_PYTHON={value}\n")}
    assert judge(CLOUDSDK_PYTHON, nodes).status is status
    assert judge(CLOUDSDK_PYTHON, applied(nodes, CLOUDSDK_PYTHON)).status is Status.PASS


def test_apply_keeps_the_rest_of_the_environment_file() -> None:
    nodes = applied(
        debian() | {"/etc/environment": File(b"PATH=/bin # mine\nCLOUDSDK_PYTHON=/gone\n", 0o600, 1, 2)}
    )
    file = nodes["/etc/environment"]
    assert isinstance(file, File)
    assert file.content.startswith(b"PATH=/bin # mine\nCLOUDSDK_PYTHON=/usr/bin/python3\n")
    assert (file.mode, file.uid, file.gid) == (0o600, 1, 2)
    assert nodes[settings.KNOWN_ENVIRONMENT_PATH] == File(file.content, 0o600, 0, 0)


def test_a_copy_of_what_is_not_right_keeps_no_unit_from_mending_it() -> None:
    """The unit does nothing where ``/etc/environment`` is the copy's equal."""
    wrong = text("PATH=/bin\n")
    nodes = applied(debian()) | {"/etc/environment": wrong, settings.KNOWN_ENVIRONMENT_PATH: wrong}
    for requirement in (TIMEOUTS, CLOUDSDK_PYTHON):
        assert "takes /etc/environment for right" in judge(requirement, nodes).message
        assert judge(requirement, applied(nodes)).status is Status.PASS


SCRIPTS = [
    ("print(request.content)\n", 0o755, Status.FAIL, "line 1 prints b'VALUE'"),
    ("import urllib  # computeMetadata\n", 0o755, Status.WARN, "was not tried"),
    ("print(1)\n", 0o755, Status.FAIL, "does not ask"),
    (files.read(metadata.RESOURCE), 0o700, Status.FAIL, "owner alone"),
]


@pytest.mark.parametrize(("content", "mode", "status", "reason"), SCRIPTS, ids=[s[3] for s in SCRIPTS])
def test_a_metadata_script_is_judged_by_what_it_prints(
    content: str, mode: int, status: Status, reason: str
) -> None:
    nodes = applied(debian()) | {metadata.SCRIPT: text(content, mode)}
    verdict = judge(SCRIPT, nodes)
    assert (verdict.status, reason in verdict.message) == (status, True), verdict.message
    after = applied(nodes)
    if status is Status.WARN:
        assert after == nodes  # one that may work is its owner's
    else:
        assert judge(SCRIPT, after).status is Status.PASS


def test_the_paths_in_our_scripts_are_the_ones_that_are_installed() -> None:
    for name in ("configure-env-vars.sh", "configure-gcs-timeouts.sh", metadata.RESOURCE):
        assert settings.ARCHIVE_PATH in files.read(name)
    for task in (environment.TPU_ENV_TASK, environment.CLOUDSDK_PYTHON_TASK, storage_timeouts.TASK):
        command = rf"ExecStart={settings.INTERPRETER} -I (-S )?{settings.ARCHIVE_PATH} {task.arguments[0]}\n"
        assert re.search(command, files.read(task.unit))
    assert f"u {settings.USER} {settings.USER_ID} " in files.read("tpu-image.sysusers.conf")
    assert boot_tasks.SYSUSERS_PATH in files.read("tpu-image-environment.service")
    assert runtime_archive.build().startswith(b"#!" + settings.INTERPRETER.encode())
