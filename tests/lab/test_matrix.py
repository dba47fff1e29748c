"""Everything that the lab can emulate, a boot each: an hour and more in software emulation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lab_images import add_kernel_parameters, edited
from lab_statuses import having, output, verdict, wrong
from tpu_image.catalogue.requirement import Profile, Status
from tpu_image.lab import boot as lab
from tpu_image.lab import chips
from tpu_image.lab.result import BootResult, Outcome

pytestmark = pytest.mark.matrix

Boot = Callable[..., BootResult]
NOTHING_EXECUTED = "test ! -e /run/tpu-image-executed"


@pytest.mark.parametrize("tpu", ["v6e:1", "v6e:4", "v6e:8", "v5p:4", "v5e:4", "tpu7x:1", "tpu7x:4"])
def test_a_built_image_passes_with_these_chips(boot: Boot, built: Path, tpu: str) -> None:
    result = boot(built, tpu)
    assert wrong(result) == {}
    asked = chips.parse(tpu)
    assert len(result.guest.devices) == len(asked.functions())
    assert f"{asked.total} " in verdict(result, "machine.devices").message


@pytest.mark.parametrize("fault", ["down:30s", "503:3x", "slow", "portal:20s"])
def test_a_fault_that_passes_is_survived(boot: Boot, built: Path, fault: str) -> None:
    result = boot(built, "v6e:1", fault=(f"metadata={fault}",), run=("cat /home/tpu-runtime/tpu-env",))
    assert wrong(result) == {}
    assert "ACCELERATOR_TYPE" in output(result)


@pytest.mark.parametrize("fault", ["503", "html", "portal", "malformed", "garbage", "truncated"])
def test_a_fault_that_stays_is_told_by_the_unit_and_nothing_is_made_of_it(
    boot: Boot, built: Path, fault: str
) -> None:
    result = boot(built, "v6e:1", fault=(f"metadata={fault}",), run=(NOTHING_EXECUTED, "ls -A /home"))
    assert having(result, Status.FAIL) >= {"machine.environment"}
    assert "tpu-env" not in output(result, 1)
    assert verdict(result, "machine.devices").status is Status.PASS


def test_an_initramfs_without_its_root_is_named(boot: Boot, base: Path, tmp_path: Path) -> None:
    lost = "root=UUID=00000000-0000-0000-0000-000000000000"
    image = edited(base, tmp_path / "lost.raw", lambda overlay: add_kernel_parameters(overlay, lost))
    result = lab.boot(lab.Request(image, chips.parse("v6e:1"), Profile()))
    assert result.outcome is Outcome.DIED
    assert result.reason == "the initramfs did not find the root and waits at its shell"
