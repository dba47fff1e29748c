"""QEMU is told to make a machine of Compute Engine's kind, and never to write to the artefact."""

from __future__ import annotations

import json
from dataclasses import replace

from tpu_image.lab.machine import Channels, Files, Machine, arguments

TCG = Machine("tcg", 2, 2048, devices=('{"driver": "vfio-user-pci"}',))
FILES = Files(10, "qcow2", 11)
CHANNELS = Channels(20, 21, 22)


def words(machine: Machine = TCG, files: Files = FILES) -> list[str]:
    return arguments(machine, files, CHANNELS)


def values(option: str, machine: Machine = TCG, files: Files = FILES) -> list[str]:
    """What an option is given, each time."""
    given = words(machine, files)
    return [given[place + 1] for place, word in enumerate(given) if word == option]


def test_the_base_is_read_only_and_leads_qemu_nowhere_else() -> None:
    base, overlay = map(json.loads, values("-blockdev"))
    assert base["read-only"] is True
    assert base["backing"] is None
    assert base["file"]["filename"] == "/dev/fdset/1"
    assert overlay["backing"] == base["node-name"]
    assert values("-add-fd") == ["fd=10,set=1", "fd=11,set=2"]


def test_a_raw_base_has_no_backing_file_to_forbid() -> None:
    base = json.loads(values("-blockdev", files=FILES._replace(base_format="raw"))[0])
    assert base["driver"] == "raw"
    assert "backing" not in base


def test_the_iommu_comes_before_every_device_behind_it() -> None:
    devices = values("-device")
    assert devices[0].startswith("intel-iommu,intremap=on,caching-mode=on")
    assert devices[-1] == '{"driver": "vfio-user-pci"}'


def test_a_machine_without_an_iommu_can_be_asked_for() -> None:
    assert not any("intel-iommu" in device for device in values("-device", replace(TCG, iommu=False)))


def test_under_kvm_interrupt_remapping_has_its_io_apic_in_qemu() -> None:
    kvm = replace(TCG, accelerator="kvm")
    assert values("-machine", kvm) == ["q35,graphics=off,kernel-irqchip=split"]
    assert values("-accel", kvm) == ["kvm"]
    assert values("-accel") == ["tcg,thread=multi"]


def test_the_uefi_firmware_is_inherited_open_and_its_code_read_only() -> None:
    files = Files(10, "raw", 11, 12, 13)
    blocks = {block["node-name"]: block for block in map(json.loads, values("-blockdev", files=files))}
    assert blocks["code"]["read-only"] is True
    assert blocks["variables"]["read-only"] is False
    assert values("-machine", files=files)[1:] == ["pflash0=code,pflash1=variables"]
    assert {"fd=12,set=3", "fd=13,set=4"} < {*values("-add-fd", files=files)}
    assert len(values("-machine")) == 1


def test_ssh_is_forwarded_where_it_is_asked_for() -> None:
    assert "hostfwd=tcp:127.0.0.1:22000-:22" in values("-netdev", replace(TCG, forward_ssh=True))[0]
    assert "hostfwd" not in values("-netdev")[0]


def test_the_guest_cannot_start_programs_through_qemu() -> None:
    assert values("-sandbox") == ["on,obsolete=deny,elevateprivileges=deny,spawn=deny"]


def test_every_file_that_qemu_needs_is_named() -> None:
    assert Files(10, "raw", 11, 12, 13).descriptors == (10, 11, 12, 13)
    assert FILES.descriptors == (10, 11)


def test_a_guest_that_starts_anew_has_ended_unless_it_is_to() -> None:
    assert values("-action") == ["reboot=shutdown,panic=shutdown"]
    assert values("-action", replace(TCG, restarts=True)) == ["reboot=reset,panic=shutdown"]
