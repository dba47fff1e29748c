"""A kernel that makes a character device for every function: what a user can do with it, on an image of ours."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lab_images import add_kernel, edited, tpu_image_of
from lab_statuses import having, output, verdict, wrong
from tpu_image.catalogue.requirement import Status
from tpu_image.lab import chips, guest
from tpu_image.lab.result import BootResult, Device

pytestmark = pytest.mark.matrix

Boot = Callable[..., BootResult]

TPU = "v6e:2,tpu7x:1"

OPEN_IOMMUFD = (
    """echo 'KERNEL=="iommu", MODE="0666"' >/etc/udev/rules.d/60-iommufd.rules && """
    "udevadm control --reload && udevadm trigger --settle /dev/iommu"
)
"""What the verdict on a boot tells users of iommufd to do."""

CHARACTER_DEVICE_STEPS = [
    *("open device", "open /dev/iommu", "BIND_IOMMUFD", "IOAS_ALLOC", "ATTACH_PT"),
    *("GET_INFO", "read config", "MAP_DMA", "RESET"),
]


@pytest.fixture
def kernel() -> Path:
    """A folder with a Linux of Debian that has iommufd, laid out as in an image."""
    name = os.environ.get("TPU_IMAGE_TEST_KERNEL", "")
    if not name or not (Path(name) / "boot").is_dir():
        pytest.fail("TPU_IMAGE_TEST_KERNEL names no folder with a kernel: run these tests through `make lab`")
    return Path(name)


def use_as_nobody(addresses: list[str]) -> str:
    """Give the command with which nobody uses functions by every interface that they have."""
    return f"su -s /bin/sh -c 'exec python3 -I {guest.FOLDER}/vfio.py {' '.join(addresses)}' nobody"


def failed(device: Device, interface: str) -> list[str]:
    """The calls by an interface that failed; there was one at least."""
    steps = [step for step in device.steps if step.interface == interface]
    assert steps, device
    return [step.name for step in steps if not step.ok]


def test_a_user_opens_every_character_device_and_uses_it_once_iommufd_is_open(
    boot: Boot, base: Path, kernel: Path, tmp_path: Path
) -> None:
    newer = edited(base, tmp_path / "newer.raw", lambda overlay: add_kernel(overlay, kernel))
    image = tpu_image_of(newer, tmp_path / "tpu.tar.gz")
    addresses = [function.address for function in chips.parse(TPU).functions()]
    result = boot(image, TPU, run=(OPEN_IOMMUFD, use_as_nobody(addresses)))
    assert wrong(result) == {}
    assert having(result, Status.WARN) == {"lab.usable", "machine.agent"}
    assert verdict(result, "lab.usable").message.endswith("by groups alone: /dev/iommu is closed")
    assert [device.address for device in result.guest.devices] == addresses
    for device in result.guest.devices:
        modes = {node.path.rpartition("/")[0]: node.mode for node in device.nodes}
        assert modes == {"/dev/vfio": 0o666, "/dev/vfio/devices": 0o666}
        assert failed(device, "group") == []
        assert failed(device, "cdev") == ["open /dev/iommu"]
    steps = [json.loads(line) for line in output(result, 1).splitlines()]
    assert [step for step in steps if not step["ok"]] == []
    for address in addresses:
        by_device = [s["name"] for s in steps if (s["address"], s["interface"]) == (address, "cdev")]
        assert by_device == CHARACTER_DEVICE_STEPS
