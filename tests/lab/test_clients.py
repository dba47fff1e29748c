"""Google's own clients in a guest: what they list is what is plugged in."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from customise_lab import debian_sources
from lab_images import built_by
from lab_statuses import output, verdict, wrong
from tpu_image.lab.result import BootResult

pytestmark = pytest.mark.matrix

Boot = Callable[..., BootResult]

CHIPS = 4
PLATFORMS = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")

SPECIFICATION = """\
base: {base}
size: 12G
output: {{path: tpu.qcow2, format: qcow2}}
profile: {{agent: elsewhere}}
packages: [python3-venv]
sources: apt.sources
pip:
- {{venv: /opt/clients, packages: [jax, tpu-info], wheels: wheels}}
waive: {{prerequisites.gcloud: the base has none}}
"""

# The whole of jax is imported on the way.
JAX = """\
/opt/clients/bin/python -c '
from jax._src import hardware_utils as found
print(found.num_available_tpu_chips_and_device_id(), found.transparent_hugepages_enabled())'
"""
TPU_INFO = "cd / && COLUMNS=200 su -s /bin/sh -c '/opt/clients/bin/tpu-info' nobody"


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheels of the clients and all that they need, for the guest's Python."""
    folder = tmp_path_factory.mktemp("clients") / "wheels"
    python = ("--python-version", "3.11", "--implementation", "cp", "--abi", "cp311")
    platforms = [word for name in PLATFORMS for word in ("--platform", f"{name}_x86_64")]
    options = ("--quiet", "--only-binary", ":all:", *python, *platforms, "--dest", str(folder))
    subprocess.run([sys.executable, "-m", "pip", "download", *options, "jax", "tpu-info"], check=True)
    return folder


def test_jax_and_tpu_info_list_every_chip(boot: Boot, base: Path, wheels: Path) -> None:
    folder = wheels.parent
    (folder / "apt.sources").write_bytes(debian_sources())
    built_by(folder, SPECIFICATION.format(base=base))
    result = boot(folder / "tpu.qcow2", f"v6e:{CHIPS}", run=(JAX, TPU_INFO))
    assert wrong(result) == {}
    assert f"({CHIPS}, <TpuVersion.v6e: 6>) True" in output(result).splitlines()
    groups = {device.group for device in result.guest.devices}
    assert len(groups) == CHIPS
    rows = [line.split() for line in output(result, 1).splitlines() if line.startswith("| /dev/vfio/")]
    assert {row[1] for row in rows} == {f"/dev/vfio/{group}" for group in groups}
    assert [row[3:6] for row in rows] == [["TPU", "v6e", "chip"]] * CHIPS
    assert verdict(result, "lab.usable").message.startswith(f"nobody opened {CHIPS} IOMMU groups")
