"""Emulated TPUs under a real kernel: its own IOMMU groups, vfio-pci and VFIO API, in a guest without a system."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import small_guest
from tpu_image.lab import chips, qemu
from tpu_image.lab.vfio_user.function import Statistics
from tpu_image.lab.vfio_user.process import emulating

pytestmark = pytest.mark.lab

CHIPS = chips.parse("v6e:1,v5p:1,tpu7x:2,v5e:1")
SECONDS = 900

Said = dict[str, dict[str, list[int]]]


@pytest.fixture(scope="module")
def guest(
    base: Path, _qemu: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Said, dict[str, Statistics]]]:
    """What the guest said, by address and step, and what the server counted."""
    folder = tmp_path_factory.mktemp("guest")
    kernel, modules = small_guest.kernel_and_modules(base)
    (folder / "kernel").write_bytes(kernel)
    init = small_guest.program(Path(__file__).parent / "vfio_guest.c", folder)
    (folder / "initrd").write_bytes(small_guest.initial_memory(init, modules))
    found = qemu.find()
    functions = CHIPS.functions()
    with emulating(folder, {function.name: function.identity for function in functions}) as tpus:
        command = [
            *found.command,
            *(
                "-nodefaults",
                "-display",
                "none",
                "-machine",
                "q35",
                "-accel",
                "tcg",
                "-cpu",
                "max",
                "-m",
                "512",
            ),
            *(
                "-serial",
                "stdio",
                "-no-reboot",
                "-kernel",
                str(folder / "kernel"),
                "-initrd",
                str(folder / "initrd"),
            ),
            # On a busy machine an emulated timer can be too late for the kernel's check of it, which then panics.
            *("-append", "console=ttyS0 intel_iommu=on,sm_on quiet panic=-1 no_timer_check"),
            *("-device", "intel-iommu,intremap=on,caching-mode=on"),
        ]
        for function in functions:
            command += ["-device", function.device(tpus.socket(function.name))]
        environment = {**os.environ, **found.environment}
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
        console = done.stdout.decode("utf-8", "replace")
        assert "all done 0" in console, console[-3000:] + done.stderr.decode("utf-8", "replace")
        yield said(console), tpus.statistics()


def said(console: str) -> Said:
    found: Said = {}
    for address, step, value in re.findall(r"^(0000:\S+) (\S+) (-?\d+)\s*$", console, re.MULTILINE):
        found.setdefault(address, {}).setdefault(step, []).append(int(value))
    return found


def test_the_kernel_finds_every_function_and_gives_each_its_own_group(guest: tuple[Said, object]) -> None:
    found, _ = guest
    assert set(found) == {function.address for function in CHIPS.functions()}
    assert len({steps["group"][0] for steps in found.values()}) == len(CHIPS.functions())


def test_every_function_passes_the_whole_api(guest: tuple[Said, object]) -> None:
    found, _ = guest
    for function in CHIPS.functions():
        steps = found[function.address]
        assert steps.pop("group")
        assert steps == {
            "write": [1, 1],
            "set-container": [0],
            "set-iommu": [0],
            "device": [1],
            "flags": [3],
            "ids": [function.identity.device << 16 | function.identity.vendor],
            "bar0-size": [1 << 20],
            "bar4-size": [1 << 20],
            "bar-reads-back": [1, 1],
            "bar-is-mapped": [1, 1],
            "map": [0],
            "unmap": [0],
            "map-again": [0],
            "reset": [0],
            "after-reset": [0],
        }


def test_the_server_had_nothing_to_refuse(guest: tuple[Said, dict[str, Statistics]]) -> None:
    for counts in guest[1].values():
        assert (counts.clients, counts.refused, counts.dropped) == (1, 0, 0)
        assert counts.function_level_resets >= 2
        assert counts.dma_maps > 2 * 512  # pages of the two times 2 MiB
