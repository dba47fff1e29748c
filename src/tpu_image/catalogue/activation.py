"""What makes changed files take effect: the commands that follow which changes, and what needs a person.

``apply`` runs the commands on the running machine, ``render`` writes them into what it renders. For a
directory nothing is run: the machine that boots from it reads the files anyway.
"""

from __future__ import annotations

import fnmatch
import posixpath
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tpu_image.catalogue import hardware
from tpu_image.catalogue.hardware import NodeKind
from tpu_image.catalogue.requirement import Profile

_UDEV = ("*/udev/rules.d/*", "*/udev/bind_to_vfio_pci.sh")
_GRUB_DEFAULTS = ("/etc/default/grub", "/etc/default/grub.d/*")
_BOOT_ENTRIES = ("/boot/*", "/efi/*")
_WANTED = ("*/systemd/system/*.wants/*",)
_SYSTEMD_DEFAULTS = ("*/systemd/system.conf", "*/systemd/system.conf.d/*")


class Command(NamedTuple):
    """A command that makes changes of some paths take effect at once."""

    arguments: tuple[str, ...]
    """Name of the program, to be looked up in the system's own directories, and its arguments."""
    why: str
    """What it achieves, to be read after "to": ``load the new udev rules``."""
    paths: tuple[str, ...]
    """Shell patterns (``*`` matches ``/`` too) of the paths whose change asks for it."""
    unless: tuple[str, ...] = ()
    """Patterns of the paths whose change makes it needless."""
    seconds: int = 60
    """Time that it may take."""
    offline: bool = False
    """Whether it also has a meaning in a root that does not run (chroot)."""


class Note(NamedTuple):
    """What a person has to do for changes of some paths to take effect."""

    text: str
    paths: tuple[str, ...]
    reboot: bool = False
    """Whether what is to be done is a reboot."""


_BEFORE_DEVICES: tuple[Command, ...] = (
    Command(
        ("update-grub",),
        "put the kernel parameters into the boot entries",
        _GRUB_DEFAULTS,
        unless=_BOOT_ENTRIES,
        seconds=300,
        offline=True,
    ),
    Command(("systemd-sysusers",), "create the new system users", ("*/sysusers.d/*",)),
    Command(("systemd-tmpfiles", "--create"), "create the new directories", ("*/tmpfiles.d/*",)),
    Command(
        ("systemctl", "daemon-reload"),
        "have systemd read the new units and defaults",
        ("*/systemd/system/*", *_SYSTEMD_DEFAULTS),
    ),
    Command(
        ("systemctl", "restart", "systemd-modules-load.service"),
        "load the kernel modules",
        ("*/modules-load.d/*",),
    ),
    Command(("udevadm", "control", "--reload"), "load the new udev rules", _UDEV),
)

_AFTER_DEVICES = (
    Command(("udevadm", "settle", "--timeout=60"), "wait until udev is done", _UDEV, seconds=90),
)

NOTES: tuple[Note, ...] = (
    Note(
        "reboot: kernel parameters take effect at the next boot",
        (*_GRUB_DEFAULTS, *_BOOT_ENTRIES),
        reboot=True,
    ),
    Note("restart the services that use TPUs: limits are given to a service at its start", _SYSTEMD_DEFAULTS),
    Note(
        "log in again: limits and environment are given to a session at its login",
        ("/etc/security/limits.conf", "/etc/security/limits.d/*", "/etc/environment"),
    ),
)


def commands(paths: Sequence[str], profile: Profile, *, links: Iterable[str] = ()) -> list[Command]:
    """Give the commands that make changes take effect, in the order to run them.

    Args:
        paths: what was changed.
        profile: whose generations' devices are treated as just added.
        links: those of the paths that are links now: a unit that is newly wanted by a target is started.
    """
    known = (*_BEFORE_DEVICES, *_triggers(profile), *_AFTER_DEVICES, *_starts(links))
    return [c for c in known if _match(paths, c.paths) and not _match(paths, c.unless)]


def notes(paths: Sequence[str]) -> list[Note]:
    """Give what a person has to do for changes of these paths to take effect."""
    return [note for note in NOTES if _match(paths, note.paths)]


def _match(paths: Sequence[str], patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns for path in paths)


def _triggers(profile: Profile) -> list[Command]:
    """Have udev treat the TPUs of the profile as just added, and no other device.

    Each device id has a command of its own: udevadm(8) says that different attributes must all match, not what
    several values of one attribute mean. The bind script that the rules run opens the VFIO nodes as well.
    """
    trigger = ("udevadm", "trigger", "--action=add")
    why = "have udev apply the rules to the TPUs that are there"
    vfio = [generation.device for generation in profile.generations if generation.node is NodeKind.VFIO]
    matches: list[tuple[str, ...]] = [
        (
            "--subsystem-match=pci",
            f"--attr-match=vendor={hardware.GOOGLE_VENDOR:#06x}",
            f"--attr-match=device={device:#06x}",
        )
        for device in dict.fromkeys(vfio)
    ]
    if len(vfio) < len(profile.generations):
        matches.append(("--sysname-match=accel[0-9]*",))
    return [Command((*trigger, *match), why, _UDEV) for match in matches]


def _starts(links: Iterable[str]) -> list[Command]:
    units = sorted({posixpath.basename(path) for path in links if _match([path], _WANTED)})
    if not units:
        return []
    return [Command(("systemctl", "start", *units), "start what every boot will start", _WANTED, seconds=120)]
