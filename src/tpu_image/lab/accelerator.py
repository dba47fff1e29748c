"""Whether KVM truly works here. That /dev/kvm opens proves nothing: on some nested hosts no guest ever runs.

A guest of one boot sector writes a byte to the serial port. Where it arrives, KVM works.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from tpu_image.lab.qemu import Qemu
from tpu_image.lab.throwaway import nameless_file
from tpu_image.parent_death import ends_with_us

MARKER = b"K"
SECONDS = 2.5
"""How long the boot sector may take: a fraction of a second under KVM, unless the host emulates what it runs."""

_COM1 = 0x3F8
_DISK_SIZE = 1024 * 1024


class Accelerator(NamedTuple):
    """``kvm`` or ``tcg``, and why, as one sentence without a full stop."""

    name: str
    reason: str


def boot_sector() -> bytes:
    """A boot sector in 16-bit code that writes the marker to the first serial port and halts."""
    code = bytes([0xBA, *_COM1.to_bytes(2, "little")])  # mov dx, 0x3f8
    code += bytes([0xB0, *MARKER])  # mov al, marker
    code += b"\xee"  # out dx, al
    code += b"\xf4\xeb\xfd"  # hlt; jmp to the hlt
    return code.ljust(510, b"\0") + b"\x55\xaa"


def choose(qemu: Qemu, device: str = "/dev/kvm") -> Accelerator:
    """Take KVM where a guest runs with it, else software emulation.

    Raises:
        LabError: there is no room for the guest's disk.
    """
    if not Path(device).exists():
        return Accelerator("tcg", f"this machine has no {device}")
    if not os.access(device, os.R_OK | os.W_OK):
        return Accelerator("tcg", f"{device} may not be opened by this user")
    if boots(qemu, "kvm", SECONDS):
        return Accelerator("kvm", "a test guest ran with it")
    return Accelerator("tcg", f"{device} is there, but a test guest did not run with it")


def boots(qemu: Qemu, accelerator: str, seconds: float) -> bool:
    """Whether a guest's first instructions run with an accelerator."""
    ours, theirs = socket.socketpair()
    with nameless_file() as disk, ours, theirs:
        disk.write(boot_sector().ljust(_DISK_SIZE, b"\0"))
        disk.flush()
        process = subprocess.Popen(
            [*ends_with_us(), *qemu.command, *_arguments(accelerator, disk.fileno(), theirs.fileno())],
            env={**os.environ, **qemu.environment},
            pass_fds=[disk.fileno(), theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        try:
            return _arrives(ours, process, seconds)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def _arrives(port: socket.socket, process: subprocess.Popen[bytes], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and process.poll() is None:
        if select.select([port], [], [], min(left, 0.2))[0]:
            data = port.recv(4096)
            if MARKER in data:
                return True
            if not data:
                return False
    return False


def _arguments(accelerator: str, disk: int, port: int) -> list[str]:
    return [
        *("-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35", "-m", "64"),
        *("-accel", accelerator),
        *("-add-fd", f"fd={disk},set=1"),
        *("-blockdev", "driver=raw,node-name=disk,file.driver=file,file.filename=/dev/fdset/1"),
        *("-device", "ide-hd,drive=disk"),
        *("-chardev", f"socket,id=port,fd={port}", "-serial", "chardev:port"),
    ]
