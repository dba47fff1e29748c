"""The command line of QEMU: a machine as Compute Engine has it, with emulated TPUs behind a real IOMMU.

Sources: QEMU's manual (invocation, "vfio-user"); Compute Engine, "Requirements to build custom images" for virtio-scsi,
virtio-net, the 16550A console; dmidecode of Compute Engine's machines for the SMBIOS strings.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tpu_image.lab.enclosure import GUEST_PORT
from tpu_image.lab.guest import PORT

BASE_SET, OVERLAY_SET, CODE_SET, VARIABLES_SET = 1, 2, 3, 4
"""Numbers under which QEMU knows the files that it inherits open."""

LATE_PORT = "late"
"""The PCIe port that a device can be plugged into while the guest runs."""

BARE = ("-nodefaults", "-no-user-config", "-display", "none")
SANDBOX = ("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny")
"""A guest that breaks out into QEMU starts no program from there, and gains no right."""

ACCELERATION = {"kvm": ("kvm", "host"), "tcg": ("tcg,thread=multi", "max")}
"""Values of ``-accel`` and ``-cpu`` by accelerator."""

SERIAL_NUMBER = "GoogleCloud-0123456789ABCDEF0123456789ABCDEF"
NETWORK = "net=10.128.0.0/24,host=10.128.0.1,dhcpstart=10.128.0.15,dns=10.128.0.3"
MAC = "42:01:0a:80:00:0f"
"""As Compute Engine forms them of the address: 42:01, then 10.128.0.15."""


class Files(NamedTuple):
    """Descriptors of open files: the disk's base and its format, the overlay, the firmware where it is UEFI."""

    base: int
    base_format: str
    overlay: int
    firmware: int | None = None
    variables: int | None = None

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All that there are."""
        firmware = (self.firmware, self.variables)
        return (self.base, self.overlay, *(each for each in firmware if each is not None))


class Channels(NamedTuple):
    """Descriptors of QEMU's ends of sockets: the serial console, the report, the monitor."""

    console: int
    report: int
    monitor: int


@dataclass(frozen=True)
class Machine:
    """What the guest is to have.

    Attributes:
        accelerator: ``kvm`` or ``tcg``.
        cpus: virtual processors; ``memory``: MiB.
        iommu: whether there is one.
        devices: values of ``-device`` for the emulated TPUs, in order of their slots.
        forward_ssh: whether :data:`GUEST_PORT` leads to the guest's SSH.
        restarts: whether the guest may start anew; otherwise that is its end.
    """

    accelerator: str
    cpus: int
    memory: int
    iommu: bool = True
    devices: Sequence[str] = ()
    forward_ssh: bool = False
    restarts: bool = False


def arguments(machine: Machine, files: Files, channels: Channels) -> list[str]:
    """Give QEMU's arguments."""
    return [
        *(*BARE, "-name", "tpu-image-lab", *SANDBOX),
        *_processor(machine),
        *_identity(),
        *_firmware(files),
        *_disk(files),
        *_network(machine),
        *_channels(channels),
        # A guest that panics, or starts anew where it is not to, has ended: QEMU says so, and exits.
        *("-action", f"reboot={'reset' if machine.restarts else 'shutdown'},panic=shutdown"),
        *("-device", "pvpanic-pci,addr=6"),
        *_tpus(machine),
    ]


def _processor(machine: Machine) -> list[str]:
    # Under KVM interrupt remapping needs the I/O APIC in QEMU.
    chipset = "q35,graphics=off" + (",kernel-irqchip=split" if machine.accelerator == "kvm" else "")
    accelerator, model = ACCELERATION[machine.accelerator]
    iommu = ["-device", "intel-iommu,intremap=on,caching-mode=on"] if machine.iommu else []
    return [
        *("-machine", chipset, "-accel", accelerator, "-cpu", model),
        *("-smp", str(machine.cpus), "-m", str(machine.memory)),
        *iommu,
    ]


def _identity() -> list[str]:
    return [
        *("-smbios", "type=0,vendor=Google,version=Google"),
        *("-smbios", f"type=1,manufacturer=Google,product=Google Compute Engine,serial={SERIAL_NUMBER}"),
        *("-smbios", "type=2,manufacturer=Google,product=Google Compute Engine"),
    ]


def _firmware(files: Files) -> list[str]:
    """The UEFI firmware's flash, which the machine is told of by the names of its blocks."""
    if files.firmware is None or files.variables is None:
        return []
    return [
        *_flash("code", files.firmware, CODE_SET, read_only=True),
        *_flash("variables", files.variables, VARIABLES_SET, read_only=False),
        *("-machine", "pflash0=code,pflash1=variables"),
    ]


def _flash(name: str, descriptor: int, number: int, *, read_only: bool) -> list[str]:
    block = {
        "driver": "raw",
        "node-name": name,
        "read-only": read_only,
        "file": inherited_file(number),
    }
    return [*inherited(descriptor, number), "-blockdev", json.dumps(block)]


def inherited(descriptor: int, number: int) -> list[str]:
    """Have QEMU know a file that it inherits open by a number."""
    return ["-add-fd", f"fd={descriptor},set={number}"]


def inherited_file(number: int) -> dict[str, object]:
    """Describe that file as the lowest layer of a disk, which has no other user."""
    return {"driver": "file", "filename": f"/dev/fdset/{number}", "locking": "off"}


def _disk(files: Files) -> list[str]:
    """The overlay, and behind it the base read-only, whatever the two say of themselves."""
    base: dict[str, object] = {
        "driver": files.base_format,
        "node-name": "base",
        "read-only": True,
        "file": inherited_file(BASE_SET),
    }
    if files.base_format == "qcow2":
        base["backing"] = None
    overlay = {
        "driver": "qcow2",
        "node-name": "disk",
        "backing": "base",
        "discard": "unmap",
        "cache": {"no-flush": True},
        "file": {**inherited_file(OVERLAY_SET), "discard": "unmap"},
    }
    return [
        *inherited(files.base, BASE_SET),
        *("-blockdev", json.dumps(base)),
        *inherited(files.overlay, OVERLAY_SET),
        *("-blockdev", json.dumps(overlay)),
        *("-device", "virtio-scsi-pci,id=scsi,addr=3"),
        *(
            "-device",
            "scsi-hd,bus=scsi.0,drive=disk,bootindex=0,vendor=Google,product=PersistentDisk,serial=boot",
        ),
    ]


def _network(machine: Machine) -> list[str]:
    forward = f",hostfwd=tcp:127.0.0.1:{GUEST_PORT}-:22" if machine.forward_ssh else ""
    return [
        *("-netdev", f"user,id=net,ipv6=off,{NETWORK}{forward}"),
        *("-device", f"virtio-net-pci,netdev=net,addr=4,mac={MAC},romfile="),
    ]


def _channels(channels: Channels) -> list[str]:
    return [
        *("-chardev", f"socket,id=console,fd={channels.console}", "-serial", "chardev:console"),
        *("-device", "virtio-serial-pci,addr=5", "-chardev", f"socket,id=report,fd={channels.report}"),
        *("-device", f"virtserialport,chardev=report,name={PORT}"),
        *("-chardev", f"socket,id=monitor,fd={channels.monitor}", "-mon", "chardev=monitor,mode=control"),
    ]


def _tpus(machine: Machine) -> list[str]:
    found = ["-device", f"pcie-root-port,id={LATE_PORT},addr=1c,chassis=1"]
    for device in machine.devices:
        found += ["-device", device]
    return found
