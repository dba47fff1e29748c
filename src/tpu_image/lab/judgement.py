"""What the lab itself requires of a boot, beside the catalogue's requirements of a running machine.

They are requirements like those of the catalogue, so that every report shows them alike; only a boot can answer them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tpu_image import catalogue
from tpu_image.catalogue.kernel_parameters import PARAMETERS
from tpu_image.catalogue.requirement import Evidence, Profile, Requirement, Status, Verdict, counted
from tpu_image.catalogue.sections import section
from tpu_image.lab.result import ApiStep, Device, GuestReport

MACHINE = "machine"
IOMMUFD = "/dev/iommu"
LOCKERS = ("login", "service", "root")
_TOLD = 8
"""Pieces of evidence of one kind in one verdict."""

_WELL = ("success", "exec-condition", "")
"""Results of a unit (systemctl(1) show) that are no failure: one of ours is skipped where there is nothing to mend."""

_REJECTED = ("cannot parse, ignored", "Malformed early option", "Unknown kernel command line parameters")


class Boot(NamedTuple):
    """What a verdict of the lab rests on."""

    guest: GuestReport
    expected: tuple[str, ...]
    """Addresses at which the guest must find TPU functions."""
    artefact_unchanged: bool = True
    ending: str = ""
    """Why the guest did not report; empty where it did."""
    console: tuple[str, ...] = ()
    """The last lines of the console."""
    commands: int = 0
    """Results of commands that the guest was to report: one for each in each of its boots."""


Judge = Callable[["LabRequirement", Boot], Verdict]


class LabRequirement(Requirement):
    """A requirement that only a boot answers."""

    source = "tpu-image boot"
    live = True

    def __init__(self, name: str, title: str, why: str, judge: Judge, remedy: str = "") -> None:
        self.id, self.title, self.why, self.remedy = name, title, why, remedy
        self._judge = judge

    def judge(self, boot: Boot) -> Verdict:
        """Judge a boot that reported."""
        return self._judge(self, boot)


def _booted(self: LabRequirement, boot: Boot) -> Verdict:
    if boot.ending:
        return self.failed(boot.ending, *(Evidence("/dev/console", found=line) for line in boot.console))
    return self.passed("it booted, and reported from inside")


def _attached(self: LabRequirement, boot: Boot) -> Verdict:
    found = {device.address for device in boot.guest.devices}
    missing = [address for address in boot.expected if address not in found]
    if missing:
        evidence = [
            Evidence(f"/sys/bus/pci/devices/{a}", found="missing", expected="a TPU function") for a in missing
        ]
        return self.failed(f"the guest's kernel does not show {', '.join(missing)}", *evidence[:_TOLD])
    if not boot.expected:
        return self.skipped("no TPU was emulated")
    return self.passed(
        f"the guest's kernel shows {counted(len(boot.expected), 'TPU function')}, as many as there are"
    )


def _usable(self: LabRequirement, boot: Boot) -> Verdict:
    devices = boot.guest.devices
    if not devices:
        return self.skipped("the guest shows no TPU")
    bad = {device: problem for device in devices if (problem := unusable(device))}
    if bad:
        evidence = [
            Evidence(device.address, found=problem, expected="usable") for device, problem in bad.items()
        ]
        first = next(iter(bad))
        more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
        return self.failed(f"{first.address}: {bad[first]}{more}", *evidence[:_TOLD])
    groups = {device.group for device in devices}
    used = (
        f"{counted(len(groups), 'IOMMU group')}, read, mapped and reset {counted(len(devices), 'function')}"
    )
    told = f"{boot.guest.user or 'a user'} opened {used}"
    if any(_is_closed_iommufd(step) for device in devices for step in device.steps):
        closed = Evidence(IOMMUFD, found="not open to users")
        remedy = "nothing, unless a framework of yours uses iommufd: then open it by a rule, as tpu-image build does"
        return self.warned(f"{told}, by groups alone: {IOMMUFD} is closed", closed, remedy=remedy)
    return self.passed(told)


def unusable(device: Device) -> str:
    """Say why a user cannot use a function; empty where it was used all the way."""
    failed = next((step for step in device.steps if not step.ok and not _is_closed_iommufd(step)), None)
    if failed is not None:
        return f"{failed.interface}: {failed.name}: {failed.detail}"
    if not any(step.name == "RESET" and step.ok for step in device.steps):
        return "it was not used to the end"
    return ""


def _is_closed_iommufd(step: ApiStep) -> bool:
    """Whether it failed at what no document asks for: iommufd's own node, which frameworks do without."""
    return step.name == f"open {IOMMUFD}" and not step.ok


def _kernel_log(self: LabRequirement, boot: Boot) -> Verdict:
    names = [parameter.name for parameter in PARAMETERS]
    lines = [line for line in boot.guest.kernel_warnings if is_rejection(line, names)]
    if lines:
        evidence = [Evidence("/dev/kmsg", found=line) for line in lines[:_TOLD]]
        return self.failed(f"the kernel rejected a parameter: {lines[0]}", *evidence)
    if not boot.guest.command_line:
        return self.unknown("the kernel's log was not reported")
    return self.passed("the kernel rejected none of the TPU parameters")


def is_rejection(line: str, names: Sequence[str]) -> bool:
    """Whether a line of the kernel's log says that one of these parameters did not take effect."""
    return any(phrase in line for phrase in _REJECTED) and any(name in line for name in names)


def _locked_memory(self: LabRequirement, boot: Boot) -> Verdict:
    found = {each.who: each for each in boot.guest.locked_memory}
    missing = [who for who in LOCKERS if who not in found]
    bad = [each for each in found.values() if not each.ok]
    if bad:
        evidence = [
            Evidence("", found=f"{each.who}: {each.detail}", expected="64 MiB locked") for each in bad
        ]
        return self.failed(f"a {bad[0].who} cannot lock 64 MiB: {bad[0].detail}", *evidence)
    if missing:
        return self.unknown(f"whether a {missing[0]} can lock 64 MiB was not reported")
    return self.passed("a login, a service and root each locked 64 MiB")


def _tasks(self: LabRequirement, boot: Boot) -> Verdict:
    tasks = boot.guest.tasks
    if not tasks:
        return self.skipped("the image has no boot task of tpu-image")
    bad = [task for task in tasks if task.state == "failed" or task.result not in _WELL]
    if bad:
        evidence = [Evidence(task.unit, found=f"{task.result}: {task.status}") for task in bad[:_TOLD]]
        return self.failed(f"{bad[0].unit}: {bad[0].result}: {bad[0].status}", *evidence)
    total, spent = boot.guest.times.total, boot.guest.times.ours or 0.0
    share = f", {spent / total:.1%} of the boot" if total else ""
    return self.passed(f"{len(tasks)} boot tasks succeeded in {spent:.1f} s{share}")


def _units(self: LabRequirement, boot: Boot) -> Verdict:
    units = boot.guest.failed_units
    if units:
        return self.warned(
            f"failed at boot: {', '.join(units[:_TOLD])}", remedy="systemctl status UNIT, with --shell"
        )
    if not boot.guest.settled:
        return self.warned(
            "the boot had not finished when it was judged", remedy="boot again, with a longer --timeout"
        )
    return self.passed("the boot finished and no unit failed")


def _run(self: LabRequirement, boot: Boot) -> Verdict:
    results = boot.guest.run
    if not results and not boot.commands:
        return self.skipped("no command was given with --run")
    bad = [result for result in results if result.status != 0]
    if bad:
        ended = "did not end in time" if bad[0].status is None else f"ended with status {bad[0].status}"
        return self.failed(f"{bad[0].command} {ended}")
    if len(results) < boot.commands:
        return self.unknown(f"{len(results)} of {boot.commands} results of commands were reported")
    return self.passed(f"{len(results)} commands succeeded")


def _artefact(self: LabRequirement, boot: Boot) -> Verdict:
    if boot.artefact_unchanged:
        return self.passed("its SHA-256 is the same before and after")
    return self.failed("its SHA-256 is another after the boot")


REQUIREMENTS: tuple[LabRequirement, ...] = (
    LabRequirement(
        "lab.boot",
        "the image boots and reports from inside",
        "An image that does not come up on its own boot loader and kernel is none.",
        _booted,
        "look at the console with --shell, or give a longer --timeout",
    ),
    LabRequirement(
        "lab.attached",
        "the guest's kernel shows every emulated TPU function",
        "What the bus does not show, nothing inside can use.",
        _attached,
        "look at the console log for PCI errors",
    ),
    LabRequirement(
        "lab.usable",
        "a user without privileges can use every TPU function through VFIO",
        "Frameworks list chips from sysfs, bound or not: only opening and mapping them proves that they can be used.",
        _usable,
        "run: tpu-image build, and boot its image",
    ),
    LabRequirement(
        "lab.kernel-log",
        "the kernel takes every TPU parameter of its command line",
        "A parameter that the kernel cannot parse is ignored with one line in its log.",
        _kernel_log,
        "run: tpu-image build, and boot its image",
    ),
    LabRequirement(
        "lab.locked-memory",
        "a login, a system service and root can each lock 64 MiB",
        "DMA buffers are locked; limits differ between logins and services.",
        _locked_memory,
        "run: tpu-image build, and boot its image",
    ),
    LabRequirement(
        "lab.tasks",
        "the boot tasks succeed",
        "What they write is what TPU software starts from.",
        _tasks,
        "boot with --shell and read: journalctl -u UNIT",
    ),
    LabRequirement(
        "lab.units",
        "the boot finishes and no unit fails",
        "A unit that fails in the lab fails on a TPU VM.",
        _units,
    ),
    LabRequirement(
        "lab.run",
        "the commands given with --run succeed",
        "They are the user's own tests.",
        _run,
        "read their output",
    ),
    LabRequirement(
        "lab.artefact",
        "the image itself is not changed by the boot",
        "What was tested must be what is published.",
        _artefact,
        "find what else writes to it, and build it again",
    ),
)


def requirements() -> tuple[Requirement, ...]:
    """Give everything that a boot can answer: the catalogue's, then the lab's."""
    return (*catalogue.requirements(), *REQUIREMENTS)


def judge(boot: Boot, checked: dict[str, dict[str, Verdict]], profile: Profile) -> tuple[Verdict, ...]:
    """Give the verdicts of a boot: the checker's from inside, then the lab's own. Without a report there is one."""
    if boot.ending:
        return (REQUIREMENTS[0].judge(boot),)
    inside = [
        _inside(one, checked, profile) for one in catalogue.requirements() if section(one.id) == MACHINE
    ]
    return (*inside, *(one.judge(boot) for one in REQUIREMENTS))


def _inside(requirement: Requirement, checked: dict[str, dict[str, Verdict]], profile: Profile) -> Verdict:
    """What the checker said as a user, or as root where a user cannot tell."""
    if requirement.id in profile.waivers:
        return requirement.skipped(f"waived: {profile.waivers[requirement.id]}")
    by_user, by_root = (checked.get(who, {}).get(requirement.id) for who in ("user", "root"))
    if by_user is not None and by_user.status is not Status.UNKNOWN:
        return by_user
    return by_root or by_user or requirement.unknown("the checker inside did not report it")
