"""What a session puts into the throw-away overlay: the probe, its unit and settings, the checker's single file."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Sequence
from dataclasses import dataclass

from tpu_image import single_file
from tpu_image.catalogue import bind_script, hardware
from tpu_image.catalogue.requirement import Profile
from tpu_image.lab import guest
from tpu_image.lab.terminal import LEAVE, Terminal
from tpu_image.trees.overlay import Overlay

WANTS = "/etc/systemd/system/multi-user.target.wants"
UNITS = "/etc/systemd/system"
CHECKER = "tpu-image.pyz"
SECTION = "machine"
"""The catalogue's section on running machines."""

TIMEOUTS = "/etc/systemd/system.conf.d/tpu-image-lab.conf"
_TIMEOUTS = """\
# Emulated in software, a system needs minutes for what it otherwise does in seconds.
[Manager]
DefaultTimeoutStartSec=15min
DefaultDeviceTimeoutSec=15min
"""
SERVICE_TIMEOUTS = f"{UNITS}/service.d/tpu-image-lab.conf"
_SERVICE_TIMEOUTS = """\
# The same for services that set a time of their own (systemd 244 and newer, systemd.unit(5)).
[Service]
TimeoutStartSec=15min
"""

CONSOLE_LOGIN = f"{UNITS}/serial-getty@ttyS0.service.d/tpu-image-lab.conf"
_CONSOLE_LOGIN = """\
[Service]
ExecStart=
ExecStart=-/sbin/agetty --autologin root --noclear --keep-baud 115200,57600,38400,9600 - $TERM
"""

PROFILE = "/etc/profile.d/tpu-image-lab.sh"
"""Read by login shells."""
_PROFILE = """\
# The serial console is the terminal of whoever boots this in the lab of tpu-image.
if [ "$(tty)" = /dev/ttyS0 ]; then
    echo 'tpu-image: root on the serial console; {leave}'
{settings}fi
"""
_SIZE = "    stty rows {0.rows} columns {0.columns}\n"
_KIND = """\
    for folder in /etc/terminfo /lib/terminfo /usr/share/terminfo; do
        if [ -e "$folder/{letter}/{kind}" ]; then export TERM={kind}; fi
    done
    unset folder
"""


@dataclass(frozen=True)
class Payload:
    """What the probe is to do.

    Attributes:
        profile: what the checker judges by.
        run: commands of the user, each for a shell; ``run_seconds`` is how long each may take.
        settle_seconds: how long the boot may take until the probe begins all the same.
        boots: how often the guest boots; it is judged in the last, and the commands run in each.
        late_device: whether the host plugs a device in when it is told to.
        keep: leave the guest on in the end.
        shell: have root logged in on the serial console, which is this terminal; None for nobody.
        patient: have systemd wait longer than by default for devices and units, since software emulation is slow.
    """

    profile: Profile
    run: Sequence[str] = ()
    run_seconds: float = 600
    settle_seconds: float = 600
    boots: int = 1
    late_device: bool = False
    keep: bool = False
    shell: Terminal | None = None
    patient: bool = False


def write(payload: Payload, overlay: Overlay) -> None:
    """Write it into the tree of an image.

    Raises:
        TreeError: something in the image is in the way.
    """
    for name in guest.FILES:
        overlay.write(posixpath.join(guest.FOLDER, name), guest.read(name), mode=0o644, owner=(0, 0))
    overlay.write(posixpath.join(guest.FOLDER, CHECKER), single_file.build(), mode=0o644, owner=(0, 0))
    overlay.write(posixpath.join(guest.FOLDER, "settings.json"), settings(payload), mode=0o644, owner=(0, 0))
    overlay.write(posixpath.join(UNITS, guest.UNIT), guest.read(guest.UNIT), mode=0o644, owner=(0, 0))
    overlay.symlink(posixpath.join(WANTS, guest.UNIT), posixpath.join(UNITS, guest.UNIT))
    if payload.patient:
        overlay.write(TIMEOUTS, _TIMEOUTS, mode=0o644, owner=(0, 0))
        overlay.write(SERVICE_TIMEOUTS, _SERVICE_TIMEOUTS, mode=0o644, owner=(0, 0))
    if payload.shell is not None:
        overlay.write(CONSOLE_LOGIN, _CONSOLE_LOGIN, mode=0o644, owner=(0, 0))
        overlay.write(PROFILE, profile(payload.shell), mode=0o644, owner=(0, 0))


def profile(shell: Terminal) -> str:
    """Write what tells a login shell on the console of which size and kind the terminal is, and how to leave it."""
    told = _SIZE.format(shell) if shell.rows and shell.columns else ""
    told += _KIND.format(kind=shell.kind, letter=shell.kind[0]) if shell.kind else ""
    return _PROFILE.format(leave=LEAVE, settings=told)


def settings(payload: Payload) -> str:
    """Write the probe's settings as JSON."""
    values = {
        "ids": [[hardware.GOOGLE_VENDOR, generation.device] for generation in hardware.GENERATIONS],
        "bind_script": bind_script.SCRIPT,
        "checker": checker_arguments(payload.profile),
        "run": list(payload.run),
        "run_seconds": payload.run_seconds,
        "settle_seconds": payload.settle_seconds,
        "boots": payload.boots,
        "late_device": payload.late_device,
        "keep": payload.keep,
    }
    return json.dumps(values)


def checker_arguments(profile: Profile) -> list[str]:
    """Give the options with which the checker's single file judges a running machine by a profile."""
    arguments = ["--only", SECTION, "--platform", profile.platform.value]
    arguments += ["--tpu", ",".join(generation.name for generation in profile.generations)]
    if profile.telemetry:
        arguments.append("--telemetry")
    if profile.device_group:
        arguments += ["--device-group", profile.device_group]
    if profile.agent_elsewhere:
        arguments.append("--no-agent")
    for name, reason in profile.waivers.items():
        arguments += ["--waive", f"{name}={reason}"]
    return arguments
