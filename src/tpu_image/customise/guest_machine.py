"""The command line of QEMU for a machine in which an image's programs run: its kernel, its disk, a network.

Source: QEMU's manual ("Invocation", "Direct Linux Boot").
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple

from tpu_image.customise.guest_session import START
from tpu_image.lab.machine import ACCELERATION, BARE, SANDBOX, inherited, inherited_file

DISK_SET, SESSION_SET = 1, 2
"""Numbers under which QEMU knows the disks that it inherits open."""

MEMORY = 1536
"""MiB beside what the session brings: what apt and initramfs-tools need at ease."""


class Files(NamedTuple):
    """Descriptors: the image's disk, the session's, the kernel, the initramfs or None, and sockets' ends."""

    disk: int
    session: int
    kernel: int
    initramfs: int | None
    console: int
    port: int
    monitor: int

    @property
    def inherited(self) -> tuple[int, ...]:
        """All that there are."""
        return tuple(descriptor for descriptor in self if descriptor is not None)


@dataclass(frozen=True)
class Machine:
    """What the guest is to have.

    Attributes:
        accelerator: ``kvm`` or ``tcg``.
        cpus: virtual processors; ``memory``: MiB.
        root: device of the root file system.
    """

    accelerator: str
    cpus: int
    memory: int
    root: str


def arguments(machine: Machine, files: Files) -> list[str]:
    """Give QEMU's arguments."""
    accelerator, model = ACCELERATION[machine.accelerator]
    initramfs = [] if files.initramfs is None else ["-initrd", f"/proc/self/fd/{files.initramfs}"]
    return [
        *(*BARE, "-name", "tpu-image-build", *SANDBOX),
        *("-machine", "q35,graphics=off", "-accel", accelerator, "-cpu", model),
        *("-smp", str(machine.cpus), "-m", str(machine.memory)),
        *("-kernel", f"/proc/self/fd/{files.kernel}", *initramfs, "-append", command_line(machine.root)),
        *_disk("disk", files.disk, DISK_SET, read_only=False),
        *("-device", "virtio-scsi-pci,id=scsi", "-device", "scsi-hd,bus=scsi.0,drive=disk"),
        *_disk("session", files.session, SESSION_SET, read_only=True),
        *("-device", "virtio-blk-pci,drive=session"),
        *("-netdev", "user,id=net,ipv6=off", "-device", "virtio-net-pci,netdev=net,romfile="),
        *("-device", "virtio-rng-pci"),
        *("-chardev", f"socket,id=console,fd={files.console}", "-serial", "chardev:console"),
        *("-chardev", f"socket,id=port,fd={files.port}", "-serial", "chardev:port"),
        *("-chardev", f"socket,id=monitor,fd={files.monitor}", "-mon", "chardev=monitor,mode=control"),
        "-no-reboot",
    ]


def command_line(root: str) -> str:
    """Give the kernel's: what follows the two dashes are arguments of what runs in place of init.

    The root is read-only until the script has been heard: a machine that never was has changed nothing.
    The host decides nothing by what runs in the guest, so defences between its processes would only cost time.
    """
    return (
        f"console=ttyS0 quiet root={root} rootwait ro fsck.mode=skip noresume mitigations=off net.ifnames=0 selinux=0"
        f' panic=-1 init=/bin/sh -- -c "{START}"'
    )


def _disk(name: str, descriptor: int, number: int, *, read_only: bool) -> list[str]:
    block = {
        "driver": "raw",
        "node-name": name,
        "read-only": read_only,
        "discard": "unmap",
        # A crash of this machine ends the build, and with it the disk.
        "cache": {"no-flush": True},
        "file": {**inherited_file(number), "discard": "unmap"},
    }
    return [*inherited(descriptor, number), "-blockdev", json.dumps(block)]
