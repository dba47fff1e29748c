"""What a boot from an image's own boot loader shows of it, in QEMU with emulated TPUs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lab_statuses import having, output, verdict, wrong
from tpu_image.catalogue.requirement import Status
from tpu_image.lab.result import BootResult

pytestmark = pytest.mark.lab

Boot = Callable[..., BootResult]

COST = 0.03
"""Part of an emulated boot that the boot tasks may cost: about 2 % was seen, mostly Python and what it loads."""

LISTED = "stat -c '%a %n' /dev/vfio/[0-9]* | sort -k 2 -V"
REPAIR = f"chmod 0600 /dev/vfio/[0-9]* && {LISTED} && udevadm trigger && udevadm settle && {LISTED}"
READERS = """\
only() { sort -z | grep -z -E '^(COMMAND|DOUBLE|HASH|WINDOWS)=' | tr '\\0' '\\n'; }
bash -c 'set -a; . /home/tpu-runtime/tpu-env; env -0' | only
systemd-run -q --wait --pipe -p EnvironmentFile=/home/tpu-runtime/tpu-env env -0 | only
test ! -e /run/tpu-image-executed
"""
HOSTILE_VALUES = [
    "COMMAND=$(touch /run/tpu-image-executed)",
    'DOUBLE=a "quoted" word',
    "HASH=a # b",
    "WINDOWS=C:\\new\\table",
]


def test_a_built_image_passes_with_chips_of_three_generations_one_of_them_late(
    boot: Boot, built: Path
) -> None:
    result = boot(built, "v6e:4,v5p:2,tpu7x:1", fault=("device=late",), run=(REPAIR,))
    assert wrong(result) == {}
    assert result.ok
    assert {v.requirement for v in result.verdicts if v.requirement.startswith("machine.")} - having(
        result, Status.PASS
    ) == {"machine.agent", "machine.telemetry"}
    devices = result.guest.devices
    assert [device.generation for device in devices].count("tpu7x") == 2
    assert devices[-1].address == "0000:01:00.0"
    assert len({device.group for device in devices}) == len(devices) == 8
    assert all(device.driver == "vfio-pci" and device.nodes[0].mode == 0o666 for device in devices)
    assert all(device.steps[-1].name == "RESET" and device.steps[-1].ok for device in devices)
    modes = [line.split()[0] for line in output(result).splitlines()]
    assert modes == ["600"] * 8 + ["666"] * 8
    share = (result.guest.times.ours or 0) / result.guest.times.total
    assert 0 < share < COST, [(task.unit, task.cpu, task.duration) for task in result.guest.tasks]


def test_a_built_image_boots_by_uefi_and_takes_hostile_metadata_for_text(boot: Boot, built: Path) -> None:
    result = boot(built, "tpu7x:4", firmware="uefi", fault=("metadata=hostile",), run=(READERS,))
    assert wrong(result) == {}
    assert output(result).splitlines() == HOSTILE_VALUES * 2
    assert len(result.guest.devices) == 8


def test_the_untouched_base_is_told_what_it_lacks(boot: Boot, base: Path) -> None:
    result = boot(base, "v6e:1")
    assert having(result, Status.FAIL) == {
        *("machine.devices", "machine.environment", "machine.interrupts", "machine.kernel", "machine.limits"),
        *("machine.thp", "lab.locked-memory", "lab.usable"),
    }
    assert "0000:00:08.0: no driver" in verdict(result, "machine.devices").message


def test_what_the_document_makes_of_the_base_fails_on_what_the_document_gets_wrong(
    boot: Boot, documented: Path
) -> None:
    result = boot(documented, "v5p:4")
    assert "transparent_hugepage= cannot parse, ignored" in verdict(result, "lab.kernel-log").message
    assert having(result, Status.FAIL) == {
        *("machine.environment", "machine.kernel", "machine.thp", "lab.kernel-log", "lab.locked-memory"),
    }
    assert verdict(result, "machine.devices").status is Status.PASS


def test_a_machine_without_an_iommu_is_told_so_and_keeps_its_settings_in_spite_of_errors(
    boot: Boot, built: Path
) -> None:
    result = boot(
        built, "v6e:1", fault=("iommu=off", "metadata=503:3x"), run=("cat /home/tpu-runtime/tpu-env",)
    )
    assert verdict(result, "machine.devices").message.startswith("no IOMMU in effect")
    assert having(result, Status.FAIL) == {"machine.devices", "lab.usable"}
    assert "ACCELERATOR_TYPE" in output(result)
    assert [request.status for request in result.metadata].count(503) == 3
