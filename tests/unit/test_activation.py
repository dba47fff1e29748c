"""Which commands follow which changes, and that udev understands them as we do."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tpu_image.catalogue import activation, choices, hardware
from tpu_image.catalogue.requirement import Profile

EVERYTHING = replace(Profile(), generations=hardware.GENERATIONS)


def shown(*paths: str, profile: Profile = EVERYTHING) -> list[str]:
    return [" ".join(command.arguments) for command in activation.commands(paths, profile)]


FOLLOWS = [
    ("/etc/udev/rules.d/99-tpu.rules", "udevadm control --reload"),
    ("/usr/lib/udev/bind_to_vfio_pci.sh", "udevadm settle --timeout=60"),
    ("/etc/systemd/system/tpu.service", "systemctl daemon-reload"),
    ("/etc/systemd/system.conf.d/50-tpu.conf", "systemctl daemon-reload"),
    ("/usr/lib/sysusers.d/tpu.conf", "systemd-sysusers"),
    ("/etc/modules-load.d/tpu.conf", "systemctl restart systemd-modules-load.service"),
    ("/etc/default/grub.d/99-tpu.cfg", "update-grub"),
]


@pytest.mark.parametrize(("path", "command"), FOLLOWS)
def test_a_change_is_followed_by_its_command(path: str, command: str) -> None:
    assert command in shown(path)


@pytest.mark.parametrize(
    "path", ["/etc/environment", "/etc/udev", "/var/scripts/x.sh", "/etc/default/grub.bak"]
)
def test_other_changes_are_followed_by_nothing(path: str) -> None:
    assert shown(path) == []


def test_rules_are_loaded_before_devices_are_triggered_and_waited_for() -> None:
    commands = shown("/etc/udev/rules.d/99-tpu.rules")
    assert commands[0] == "udevadm control --reload"
    assert commands[-1].startswith("udevadm settle")
    assert all(command.startswith("udevadm trigger --action=add ") for command in commands[1:-1])


def test_a_unit_that_a_target_newly_wants_is_started() -> None:
    link = "/etc/systemd/system/multi-user.target.wants/tpu.service"
    commands = [" ".join(c.arguments) for c in activation.commands([link], EVERYTHING, links=[link])]
    assert commands == ["systemctl daemon-reload", "systemctl start tpu.service"]
    assert shown(link) == ["systemctl daemon-reload"], "a link that is gone starts nothing"


def test_boot_entries_that_were_edited_need_no_update_grub() -> None:
    assert shown("/etc/default/grub.d/99-tpu.cfg", "/boot/grub/grub.cfg") == []


def test_kernel_parameters_need_a_reboot() -> None:
    (note,) = activation.notes(["/boot/grub/grub.cfg"])
    assert note.reboot
    assert not any(
        note.reboot for note in activation.notes(["/etc/environment", "/etc/udev/rules.d/x.rules"])
    )


DEVICES = {
    "0000:00:04.0": (0x1AE0, 0x006F),
    "0000:00:05.0": (0x1AE0, 0x0062),
    "0000:00:06.0": (0x1AE0, 0x0042),  # gVNIC
    "0000:00:07.0": (0x8086, 0x006F),
}


def triggered(profile: Profile, tmp_path: Path) -> set[str]:
    """What udevadm would trigger of the devices above, by its own word."""
    if not shutil.which("umockdev-run"):
        pytest.fail("umockdev-run is missing: install the package umockdev")
    description = tmp_path / "devices.umockdev"
    description.write_text(
        "\n".join(
            f"P: /devices/pci0000:00/{name}\nE: SUBSYSTEM=pci\n"
            f"A: vendor={vendor:#06x}\\n\nA: device={device:#06x}\\n\n"
            for name, (vendor, device) in DEVICES.items()
        )
    )
    found: set[str] = set()
    for command in activation.commands(["/etc/udev/rules.d/99-tpu.rules"], profile):
        if command.arguments[1] == "trigger":
            dry_run = [*command.arguments, "--dry-run", "--verbose"]
            done = subprocess.run(
                ["umockdev-run", "-d", description, "--", *dry_run],
                capture_output=True,
                text=True,
                check=True,
            )
            found |= {line.rpartition("/")[2] for line in done.stdout.splitlines()}
    return found


def test_udev_triggers_the_tpus_of_the_profile_and_no_other_device(tmp_path: Path) -> None:
    assert triggered(EVERYTHING, tmp_path) == {"0000:00:04.0", "0000:00:05.0"}
    assert triggered(replace(Profile(), generations=choices.generations("v6e")), tmp_path) == {"0000:00:04.0"}
