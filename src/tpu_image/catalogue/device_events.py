"""The udev events of TPU devices, and what the rules of a tree make of them.

Sources: udev(7) for where rules stand; the kernel's ``drivers/vfio`` for the devices: ``group.c`` (class
``vfio``: ``/dev/vfio/GROUP``, a virtual device with no parent) and ``device_cdev.c`` (class ``vfio-dev``:
``/dev/vfio/devices/vfioN``, a child of the PCI function, from Linux 6.6 on).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import NamedTuple

from tpu_image.catalogue import accounts
from tpu_image.catalogue.hardware import GOOGLE_VENDOR, Generation, NodeKind
from tpu_image.catalogue.requirement import Evidence, Profile
from tpu_image.formats.udev_event import evaluate
from tpu_image.formats.udev_lint import Finding, Severity, lint
from tpu_image.formats.udev_model import Device, Machine, Outcome, Truth
from tpu_image.formats.udev_rules import RulesFile, parse
from tpu_image.trees.base import Kind, Tree
from tpu_image.trees.overlay import Overlay

RULES_DIRECTORIES = (
    "/etc/udev/rules.d",
    "/run/udev/rules.d",
    "/usr/local/lib/udev/rules.d",
    "/usr/lib/udev/rules.d",
    "/lib/udev/rules.d",
)
"""A file here masks those of the same name in the directories after it."""

RULES_LIMIT = 1024 * 1024
"""Bytes of a rules file that are read at most; the largest of a distribution has some 50 KiB."""

MARKS = "/run/tpu-image/iommu-groups"
"""Where our bind script marks the IOMMU groups that hold a TPU."""

ADDRESS = "0000:00:04.0"
"""PCI address of the TPU function that events are made up for."""

_VOLATILE = ("/dev/", "/proc/", "/run/", "/sys/")
_ARCHITECTURES = {"x86_64": "x86-64", "aarch64": "arm64"}


class Rules(NamedTuple):
    """The rules files of a tree in the order in which udev applies them, and the machine they are for."""

    files: tuple[tuple[str, RulesFile], ...]
    machine: Machine

    def outcome(self, device: Device, action: str) -> Outcome:
        """Give what they make of an event: as before where no rule, and no file that a rule asks for, changed."""
        known = _known_outcomes(self.files, self.machine._replace(exists=_nothing), repr(device), action)
        for answers, outcome in known:
            if all(self.machine.exists(path) is answer for path, answer in answers.items()):
                return outcome
        answers = {}

        def exists(path: str) -> Truth:
            answers[path] = self.machine.exists(path)
            return answers[path]

        outcome = evaluate(self.files, device, action, self.machine._replace(exists=exists))
        known.append((answers, outcome))
        return outcome

    def complaints(self, deciding: Iterable[Evidence]) -> list[Evidence]:
        """Say what is wrong with the lines that decide, and which other lines of their files udev ignores."""
        lines: dict[str, set[int]] = {}
        for item in deciding:
            lines.setdefault(item.path, set()).add(item.line)
        return [
            Evidence(path, finding.line, finding.reason)
            for path, numbers in lines.items()
            for finding in self._lint(path)
            if finding.severity is Severity.IGNORED or finding.line in numbers
        ]

    def ignored_lines(self, words: Iterable[str]) -> list[Evidence]:
        """Find the lines that udev ignores in the files that hold one of some words."""
        return [
            Evidence(path, finding.line, f"udev ignores the line: {finding.reason}")
            for path, file in self.files
            if any(word in file.text for word in words)
            for finding in self._lint(path)
            if finding.severity is Severity.IGNORED
        ]

    def _lint(self, path: str) -> list[Finding]:
        return lint(dict(self.files)[path], self.machine.users, self.machine.groups)


def _nothing(path: str) -> Truth:
    del path
    return None


@functools.lru_cache(maxsize=256)
def _known_outcomes(
    files: tuple[tuple[str, RulesFile], ...], machine: Machine, device: str, action: str
) -> list[tuple[dict[str, Truth], Outcome]]:
    """Hold the outcomes of an event so far, each with what it took to exist.

    While a plan is made the same rules are judged after every change, most of which are of other files.
    """
    del files, machine, device, action
    return []


def load_rules(tree: Tree, architecture: str, *, marked: bool = True) -> Rules:
    """Read the rules of a tree; ``marked`` says whether the groups of TPUs are marked (:data:`MARKS`)."""
    return tree.derive(_load, architecture, marked)


def _load(tree: Tree, architecture: str, marked: bool) -> Rules:
    def exists(path: str) -> Truth:
        if path.startswith(MARKS + "/"):
            return marked
        return None if path.startswith(_VOLATILE) else tree.exists(path)

    machine = Machine(
        architecture=_ARCHITECTURES.get(architecture, ""),
        exists=exists,
        users=accounts.names(tree.derive(accounts.users)),
        groups=accounts.names(tree.derive(accounts.groups)),
        systemd=systemd_version(tree),
    )
    return Rules(_rules_files(tree), machine)


def _rules_files(tree: Tree) -> tuple[tuple[str, RulesFile], ...]:
    by_name: dict[str, str] = {}
    for directory in RULES_DIRECTORIES:
        for name in tree.names(directory, "*.rules"):
            by_name.setdefault(name, f"{directory}/{name}")
    parsed = ((path, tree.derive(_rules_file, tree.resolve(path))) for _, path in sorted(by_name.items()))
    return tuple((path, file) for path, file in parsed if file is not None)


def _rules_file(tree: Tree, path: str) -> RulesFile | None:
    """Parse the file at a path without links; None where it only masks, being empty or no file."""
    if isinstance(tree, Overlay) and path not in tree.written:
        return tree.base.derive(_rules_file, path)  # read once, however often the plan changes
    entry = tree.lstat_canonical(path)
    readable = entry is not None and entry.kind is Kind.FILE and entry.size > 0
    return parse(tree.read_text(path, RULES_LIMIT)) if readable else None


def systemd_version(tree: Tree) -> int:
    """Give the version of systemd by the name of its shared library; 0 where there is none."""
    for place in ("", "x86_64-linux-gnu/", "aarch64-linux-gnu/"):
        directory = f"/usr/lib/{place}systemd"
        for name in tree.names(directory, "libsystemd-shared-*.so"):
            digits = name[len("libsystemd-shared-") :].split(".")[0].split("-")[0]
            if digits.isdecimal() and len(digits) < 6:
                return int(digits)
    return 0


def vfio_generations(profile: Profile) -> tuple[Generation, ...]:
    """Give the generations of a profile that are used through vfio-pci."""
    return tuple(g for g in profile.generations if g.node is NodeKind.VFIO)


def identifier(generation: Generation) -> str:
    """Give vendor and device as lspci(8) prints them."""
    return f"{GOOGLE_VENDOR:04x}:{generation.device:04x}"


def function(generation: Generation, driver: str = "") -> Device:
    """Make up a PCI function of a generation, bound to a driver or to none."""
    attributes = {
        "vendor": f"0x{GOOGLE_VENDOR:04x}",
        "device": f"0x{generation.device:04x}",
        "subsystem_vendor": f"0x{GOOGLE_VENDOR:04x}",
    }
    if generation.subsystem is not None:
        attributes["subsystem_device"] = f"0x{generation.subsystem:04x}"
    bridge = Device("pci0000:00", devpath="/devices/pci0000:00")
    return Device(
        ADDRESS,
        "pci",
        f"/devices/pci0000:00/{ADDRESS}",
        driver,
        attributes,
        {
            "PCI_SLOT_NAME": ADDRESS,
            "PCI_ID": identifier(generation).upper(),
            "MODALIAS": _modalias(generation),
        },
        parent=bridge,
        complete=False,
    )


def _modalias(generation: Generation) -> str:
    vendor = f"{GOOGLE_VENDOR:08X}"
    return f"pci:v{vendor}d{generation.device:08X}sv{vendor}sd{generation.subsystem or 0:08X}bcFFsc00i00"


def group_node(number: int) -> Device:
    """Make up the device of ``/dev/vfio/NUMBER``."""
    return Device(
        str(number),
        "vfio",
        f"/devices/virtual/vfio/{number}",
        properties={"MAJOR": "241", "MINOR": str(number)},
        node=f"/dev/vfio/{number}",
    )


def function_node(generation: Generation) -> Device:
    """Make up the device of ``/dev/vfio/devices/vfio0`` of a TPU function."""
    parent = function(generation, "vfio-pci")
    return Device(
        "vfio0",
        "vfio-dev",
        f"{parent.devpath}/vfio-dev/vfio0",
        properties={"MAJOR": "240", "MINOR": "0"},
        node="/dev/vfio/devices/vfio0",
        parent=parent,
    )


def accel_node(generation: Generation) -> Device:
    """Make up the device of ``/dev/accel0``, as Google's driver for the first generations makes it."""
    parent = function(generation, "accel")
    return Device(
        "accel0",
        "accel",
        f"{parent.devpath}/accel/accel0",
        properties={"MAJOR": "242", "MINOR": "0"},
        node="/dev/accel0",
        parent=parent,
        complete=False,
    )
