"""A kernel that makes a character device for every function: what a user can do with it, on an image of ours."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lab_images import add_kernel, edited, tpu_image_of
from lab_statuses import verdict, wrong
from tpu_image.catalogue.requirement import Status
from tpu_image.lab import chips
from tpu_image.lab.result import BootResult, Device

pytestmark = pytest.mark.matrix

Boot = Callable[..., BootResult]

TPU = "v6e:2,tpu7x:1"

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


def used(device: Device, interface: str) -> list[str]:
    """The calls by an interface, all of which succeeded."""
    steps = [step for step in device.steps if step.interface == interface]
    assert all(step.ok for step in steps), steps
    return [step.name for step in steps]


def test_a_user_opens_every_character_device_and_uses_it(
    boot: Boot, base: Path, kernel: Path, tmp_path: Path
) -> None:
    newer = edited(base, tmp_path / "newer.raw", lambda overlay: add_kernel(overlay, kernel))
    result = boot(tpu_image_of(newer, tmp_path / "tpu.tar.gz"), TPU)
    assert wrong(result) == {}
    assert verdict(result, "lab.usable").status is Status.PASS
    assert len(result.guest.devices) == len(chips.parse(TPU).functions())
    for device in result.guest.devices:
        modes = {node.path.rpartition("/")[0]: node.mode for node in device.nodes}
        assert modes == {"/dev/vfio": 0o666, "/dev/vfio/devices": 0o666}
        assert "RESET" in used(device, "group")
        assert used(device, "cdev") == CHARACTER_DEVICE_STEPS
