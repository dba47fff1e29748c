"""Our units on a real Debian that boots: twice, with a metadata server whose answers change."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import case_trees
import container
import metadata_program
import tpu_image
from tpu_image.catalogue import environment, files, metadata, storage_timeouts
from tpu_image.catalogue.requirement import Profile
from tpu_image.formats import pam_environment, tpu_env
from tpu_image.runtime import settings, system_environment
from tpu_image.trees.memory import Directory, File, MemoryTree, Symlink
from tpu_image.trees.overlay import Overlay

pytestmark = pytest.mark.real

ATTRIBUTE = "TYPE: V6E\nTOPOLOGY: 2x2x2\nWORKER_ID: '3'\nUID: '4242'\nODD: 'a\"b$HOME`id`\\ '\nBLANK:\n"

SYSTEM_ENVIRONMENT = "PATH=/usr/bin:/bin\nGCS_READ_REQUEST_TIMEOUT_SECS=900\n# the site's own\n"
"""As another tool left it, so that the unit has something to do at the first boot."""

METADATA_UNIT = """\
[Unit]
Description=A metadata server at the address where Compute Engine has it
Before=tpu-image-environment.service
[Service]
ExecStartPre=/usr/bin/ip link set lo up
ExecStartPre=/usr/bin/ip address replace 169.254.169.254/32 dev lo
ExecStart=/usr/bin/python3 /var/lib/tpu-image-test/metadata_program.py 169.254.169.254 80 \\
    tpu-env=/var/lib/tpu-image-test/attribute greeting=/var/lib/tpu-image-test/greeting
ExecStartPost=/bin/sleep 1
[Install]
WantedBy=multi-user.target
"""

FIRST_BOOT = f"""\
cd /var/lib/tpu-image-test
record() {{ name=$1; shift; "$@" >"$name.out" 2>"$name.err"; echo $? >"$name.status"; }}
state() {{ systemctl show "$1" -p ActiveState -p Result -p ExecMainStatus; }}

record environment-unit state tpu-image-environment.service
record system-unit state tpu-image-system-environment.service
record target systemctl is-active tpu-image-ready.target
record journal journalctl -o cat -u tpu-image-environment -u tpu-image-system-environment
record order systemctl show systemd-user-sessions.service -p After
record user getent passwd tpu-runtime
record stat stat -c '%U %a %i' {settings.DIRECTORY} {settings.ENVIRONMENT_PATH} {settings.SYSTEM_ENVIRONMENT_PATH}
record written cat {settings.ENVIRONMENT_PATH}
record system cat {settings.SYSTEM_ENVIRONMENT_PATH}
record verify systemd-analyze verify tpu-image-environment.service tpu-image-system-environment.service \\
    tpu-image-ready.target
record sourced bash -euc '. {settings.ENVIRONMENT_PATH}; printf %s "$ODD"'

record again env -i /bin/bash {environment.SCRIPT}
record timeouts env -i /bin/bash {storage_timeouts.SCRIPT}
record greeting env -i /usr/bin/python3 {metadata.SCRIPT} greeting
record by-nobody runuser -u nobody -- /usr/bin/python3 {metadata.SCRIPT} greeting
record default /usr/bin/python3 {metadata.SCRIPT} missing fallback
record missing /usr/bin/python3 {metadata.SCRIPT} missing
record usage /usr/bin/python3 {metadata.SCRIPT}
record stat-again stat -c '%U %a %i' {settings.DIRECTORY} {settings.ENVIRONMENT_PATH} \\
    {settings.SYSTEM_ENVIRONMENT_PATH}

mv attribute attribute.good
cp {settings.SYSTEM_ENVIRONMENT_PATH} {settings.KNOWN_ENVIRONMENT_PATH}
systemctl restart tpu-image-system-environment.service
record unchanged systemctl show tpu-image-system-environment.service -p ActiveState -p Result

record not-set env -i /bin/bash {environment.SCRIPT}
systemctl restart tpu-image-environment.service
record unit-not-set state tpu-image-environment.service

printf 'LABEL: "a\\\\nb"\\n' >attribute
record refused env -i /bin/bash {environment.SCRIPT}
systemctl restart tpu-image-environment.service
record unit-refused state tpu-image-environment.service
record target-refused systemctl is-active tpu-image-ready.target

echo forbidden >attribute
systemctl restart tpu-image-environment.service
cp attribute.good attribute
for attempt in $(seq 100); do systemctl is-active -q tpu-image-environment.service && break; sleep 0.3; done
sleep 1
record unit-later state tpu-image-environment.service
record target-later systemctl is-active tpu-image-ready.target
record stat-later stat -c '%U %a %i' {settings.DIRECTORY} {settings.ENVIRONMENT_PATH} \\
    {settings.SYSTEM_ENVIRONMENT_PATH}
"""

SECOND_BOOT = f"""\
cd /var/lib/tpu-image-test
record() {{ name=$1; shift; "$@" >"$name.out" 2>"$name.err"; echo $? >"$name.status"; }}
record second-stat stat -c '%U %a %i' {settings.DIRECTORY} {settings.ENVIRONMENT_PATH} \\
    {settings.SYSTEM_ENVIRONMENT_PATH}
record second-journal journalctl -b -o cat -u tpu-image-environment -u tpu-image-system-environment
"""


@dataclass(frozen=True)
class Booted:
    """What the script recorded in the container."""

    folder: Path

    def output(self, name: str) -> str:
        return (self.folder / f"{name}.out").read_text()

    def errors(self, name: str) -> str:
        return (self.folder / f"{name}.err").read_text()

    def status(self, name: str) -> int:
        return int((self.folder / f"{name}.status").read_text())


def install(root: Path) -> None:
    """Write what the catalogue plans for the boot tasks."""
    overlay = Overlay(MemoryTree(case_trees.start("debian")))
    for module in (environment, metadata, storage_timeouts):
        for requirement in module.REQUIREMENTS:
            requirement.plan(overlay, Profile())
    for path, node in overlay.written.items():
        place = root / path.lstrip("/")
        if isinstance(node, Directory):
            place.mkdir(exist_ok=True)
        elif isinstance(node, Symlink):
            place.symlink_to(node.target)
        elif isinstance(node, File):
            place.write_bytes(node.content)
            place.chmod(node.mode)


@pytest.fixture(scope="module")
def booted(unpack_root: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    """A Debian with our boot tasks, after its second boot."""
    root = unpack_root(tmp_path_factory.mktemp("boot") / "root")
    install(root)
    (root / "etc/environment").write_text(SYSTEM_ENVIRONMENT)
    folder = container.prepare(root, FIRST_BOOT)
    shutil.copy(metadata_program.__file__, folder)
    shutil.copytree(
        Path(tpu_image.__file__).parent, folder / "tpu_image", ignore=shutil.ignore_patterns("__pycache__")
    )
    (folder / "attribute").write_text(ATTRIBUTE)
    (folder / "greeting").write_text("grüß dich")
    units = root / "etc/systemd/system"
    (units / "metadata.service").write_text(METADATA_UNIT)
    (units / "multi-user.target.wants/metadata.service").symlink_to("../metadata.service")
    (units / "tpu-image-environment.service.d").mkdir()
    (units / "tpu-image-environment.service.d/test.conf").write_text("[Service]\nRestartSec=1s\n")
    container.boot(root)
    (folder / "script").write_text(SECOND_BOOT)
    container.boot(root)
    yield Booted(folder)
    container.remove(root)


def test_both_units_succeed_and_the_target_is_reached(booted: Booted) -> None:
    for unit in ("environment-unit", "system-unit"):
        shown = booted.output(unit)
        assert "ActiveState=active" in shown, booted.output("journal")
        assert "Result=success" in shown
    assert booted.output("target") == "active\n"


def test_the_attribute_is_written_for_its_user(booted: Booted) -> None:
    assert booted.output("user").startswith("tpu-runtime:x:2000:2000:")
    directory, file, system = booted.output("stat").splitlines()
    assert (directory.split()[:2], file.split()[:2]) == (["tpu-runtime", "755"], ["tpu-runtime", "644"])
    assert system.split()[:2] == ["root", "644"]
    values = tpu_env.values(tpu_env.parse(booted.output("written")))
    assert values == {
        "TYPE": "V6E",
        "TOPOLOGY": "2x2x2",
        "WORKER_ID": "3",
        "UID": "4242",
        "TPU_UID": "4242",
        "ODD": 'a"b$HOME`id`\\ ',
        "BLANK": "",
    }
    assert booted.output("sourced") == values["ODD"]


def test_the_system_environment_has_every_value_before_anybody_logs_in(booted: Booted) -> None:
    text = booted.output("system")
    assert text.startswith(SYSTEM_ENVIRONMENT)
    assert system_environment.with_storage_timeouts(system_environment.with_cloudsdk_python(text)) == text
    assert pam_environment.effective(text, "GCS_WRITE_REQUEST_TIMEOUT_SECS") is not None
    assert "tpu-image-system-environment.service" in booted.output("order")


def test_systemd_finds_nothing_wrong_with_the_units(booted: Booted) -> None:
    assert (booted.status("verify"), booted.output("verify") + booted.errors("verify")) == (0, "")


def test_the_journal_has_one_plain_line_for_each_file(booted: Booted) -> None:
    journal = booted.output("journal")
    assert f"{settings.ENVIRONMENT_PATH}: 6 variables, written\n" in journal
    assert f"{settings.SYSTEM_ENVIRONMENT_PATH}: written\n" in journal
    assert "Traceback" not in journal


def test_the_documented_scripts_do_their_work_with_an_empty_environment(booted: Booted) -> None:
    assert booted.status("again") == 0
    assert booted.output("again").count("unchanged") == 2
    assert (booted.status("timeouts"), booted.errors("timeouts")) == (0, "")
    for name in ("greeting", "by-nobody"):
        assert (booted.status(name), booted.output(name)) == (0, "grüß dich\n")
    assert (booted.status("default"), booted.output("default")) == (0, "fallback\n")
    assert (booted.status("missing"), booted.output("missing")) == (66, "")
    assert booted.errors("missing") == "tpu-image: instance/attributes/missing is not set\n"
    assert booted.status("usage") == 64


def test_doing_it_again_or_booting_again_changes_nothing(booted: Booted) -> None:
    for later in ("stat-again", "stat-later", "second-stat"):
        assert booted.output(later) == booted.output("stat")
    journal = booted.output("second-journal")
    assert f"{settings.ENVIRONMENT_PATH}: 6 variables, unchanged\n" in journal
    assert f"{settings.SYSTEM_ENVIRONMENT_PATH}: " not in journal  # not even looked at by Python


def test_a_system_environment_that_is_as_it_was_made_is_left_without_starting_python(booted: Booted) -> None:
    assert booted.output("unchanged") == "Result=exec-condition\nActiveState=inactive\n"


def test_a_machine_without_the_attribute_is_said_to_be_no_tpu_and_fails_no_unit(booted: Booted) -> None:
    assert booted.status("not-set") == 66
    assert "this is no TPU VM" in booted.errors("not-set")
    assert "ActiveState=active" in booted.output("unit-not-set")


def test_an_attribute_that_cannot_be_used_fails_the_unit_and_is_not_tried_again(booted: Booted) -> None:
    assert booted.status("refused") == 65
    assert "the value of LABEL holds a newline" in booted.errors("refused")
    assert "ActiveState=failed" in booted.output("unit-refused")
    assert booted.output("target-refused") == "inactive\n"


def test_a_later_try_that_succeeds_reaches_the_target(booted: Booted) -> None:
    assert "Result=success" in booted.output("unit-later")
    assert booted.output("target-later") == "active\n"


def test_another_user_with_the_id_2000_only_changes_the_id(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\nsomebody:x:2000:2000::/home/s:/bin/sh\n")
    (tmp_path / "etc/group").write_text("root:x:0:\nsomebody:x:2000:\n")
    configuration = tmp_path / "tpu-image.conf"
    configuration.write_text(files.read("tpu-image.sysusers.conf"))
    subprocess.run(["systemd-sysusers", f"--root={tmp_path}", configuration], check=True, capture_output=True)
    users = (tmp_path / "etc/passwd").read_text().splitlines()
    assert users[1].startswith("somebody:x:2000:")
    assert users[2].startswith("tpu-runtime:x:")
    assert not users[2].startswith("tpu-runtime:x:2000:")
