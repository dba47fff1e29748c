"""The program that udev runs to bind a TPU function: our own, and how another one is read.

A script that is not ours is never run, only read: which steps of the document's it takes, and which of the
faults of the document's own script it has. That it works is for a boot to prove.

Source: section "Associa i dispositivi TPU a VFIO" of the document (R3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tpu_image.catalogue import files
from tpu_image.catalogue.device_events import MARKS
from tpu_image.catalogue.groups import is_name
from tpu_image.catalogue.programs import why_not_runnable
from tpu_image.catalogue.requirement import Profile
from tpu_image.formats import FormatError
from tpu_image.trees.base import NotAFileError, NotFoundError, TooLargeError, Tree

SCRIPT = "/lib/udev/bind_to_vfio_pci.sh"
"""Where the document puts the script."""

SCRIPT_LIMIT = 256 * 1024
"""Bytes of a script that are read at most."""
ELF = "\x7fELF"
"""How a compiled program begins (elf(5)), and what :func:`read` gives of one."""


def render(profile: Profile) -> str:
    """Give our script, opening the nodes as the profile asks.

    Raises:
        FormatError: the profile's group is no name that groupadd(8) takes.
    """
    text = files.read("bind_to_vfio_pci.sh")
    text = text.replace("\nnode_mode=0666\n", f"\nnode_mode={profile.device_mode:04o}\n", 1)
    return text.replace("\nnode_group=\n", f"\nnode_group={valid_group(profile)}\n", 1)


def valid_group(profile: Profile) -> str:
    """Give the profile's group, empty for none, once it is known to be safe in a rule and in a shell script.

    Raises:
        FormatError: it is no name that groupadd(8) takes.
    """
    group = profile.device_group
    if group and not is_name(group):
        raise FormatError(
            f"device group {group!r} is not a group name: use lower case letters, digits, - and _"
        )
    return group


def unusable(tree: Tree, path: str, *, interpreted: bool = False) -> str:
    """Say why a program cannot be started, empty where it can. ``interpreted``: an interpreter reads it."""
    return "" if interpreted and tree.is_file(path) else why_not_runnable(tree, path)


def read(tree: Tree, path: str) -> str:
    """Read a script: :data:`ELF` for a compiled program, empty where no file is that could be a script."""
    try:
        content = tree.read_bytes(path, SCRIPT_LIMIT)
    except (NotFoundError, NotAFileError, TooLargeError):
        return ""
    return ELF if content.startswith(ELF.encode()) else content.decode("utf-8", "surrogateescape")


def code(text: str) -> str:
    """Give a script without the lines that are comments."""
    return "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))


def binds(text: str) -> bool:
    """Whether a script is about binding a device to vfio-pci at all."""
    lines = code(text)
    return "vfio-pci" in lines or "vfio_pci" in lines or "driver_override" in lines


def marks_groups(text: str) -> bool:
    """Whether a script marks the IOMMU group of its function for the rule that opens group nodes."""
    return MARKS in code(text)


def takes_bare_address(text: str) -> bool:
    """Whether a script accepts a PCI address alone: ours does, and the document's."""
    lines = code(text)
    return MARKS in lines or "[[:xdigit:]]" in lines


class Step(NamedTuple):
    """One thing that the document's script does for a function."""

    name: str
    found: Callable[[str, Profile], bool]


def _opens_node(lines: str, profile: Profile) -> bool:
    if profile.device_group:
        return "chmod" in lines and "660" in lines and profile.device_group in lines
    return "chmod" in lines and any(mode in lines for mode in ("666", "a+rw", "o+rw", "+rw"))


_COMPARING = ("=~", "case ", "grep", "expr ", "re.match", "re.fullmatch", " -e ", " -d ")
_ADDRESSES = ("$1", "${1", "xdigit", "0-9", "/sys/bus/pci/devices/")


def _checks_address(lines: str, profile: Profile) -> bool:
    del profile
    return any(
        any(word in line for word in _COMPARING) and any(word in line for word in _ADDRESSES)
        for line in lines.splitlines()
    )


LOAD_STEP, NODE_STEP, INTERRUPTS_STEP = "load vfio-pci", "open /dev/vfio/GROUP", "set allow_unsafe_interrupts"
"""Steps that another part of the system can take in the script's place."""

STEPS: tuple[Step, ...] = (
    Step(LOAD_STEP, lambda t, _: "modprobe" in t and "vfio" in t),
    Step("check that its argument is a PCI address", _checks_address),
    Step("set driver_override", lambda t, _: "driver_override" in t),
    Step("unbind another driver", lambda t, _: "unbind" in t),
    Step("have vfio-pci probe the function", lambda t, _: "drivers_probe" in t or "vfio-pci/bind" in t),
    Step(NODE_STEP, _opens_node),
    Step(INTERRUPTS_STEP, lambda t, p: p.architecture != "x86_64" or "allow_unsafe_interrupts" in t),
)
"""The steps of R3."""


def missing_steps(text: str, profile: Profile) -> list[str]:
    """Name the steps that a script does not take, as far as reading it tells."""
    lines = code(text)
    return [step.name for step in STEPS if not step.found(lines, profile)]


def known_faults(text: str) -> list[tuple[int, str]]:
    """Find the faults of the document's script in another one: the line, from 1, and what is wrong there."""
    lines = [line if not line.lstrip().startswith("#") else "" for line in text.splitlines()]
    found = [
        _exits_before_chmod(lines),
        _first(lines, "{2}.[[:xdigit:]]", "the address pattern also accepts 0000:00:0470"),
        _first(lines, "^[[:xdigit:]]{4}:", "the address pattern refuses PCI domains of more than 4 digits"),
        _says_bound_too_early(lines),
    ]
    return [fault for fault in found if fault is not None]


def _first(lines: list[str], text: str, reason: str) -> tuple[int, str] | None:
    return next(((number, reason) for number, line in enumerate(lines, 1) if text in line), None)


def _exits_before_chmod(lines: list[str]) -> tuple[int, str] | None:
    """Find an exit with success between the comparison with vfio-pci and the chmod."""
    compared = False
    for number, line in enumerate(lines, 1):
        if "chmod" in line:
            return None
        if compared and line.split() in (["exit"], ["exit", "0"]):
            return number, "it exits before its chmod when the function is on vfio-pci already"
        compared = compared or ("if" in line and "vfio-pci" in line)
    return None


def _says_bound_too_early(lines: list[str]) -> tuple[int, str] | None:
    """Find the message of success that follows the probe with no look at the result."""
    probed = False
    for number, line in enumerate(lines, 1):
        if probed and "echo" in line and "Bound" in line:
            return number, "it reports success without looking whether the kernel bound the function"
        probed = "drivers_probe" in line or (probed and not line.strip())
    return None
