"""Kernel parameters: on every boot entry and in the defaults (R7).

Source: the document, section "Parametri del kernel". A parameter is one object of
:mod:`~tpu_image.catalogue.kernel_parameters`; here it becomes a requirement on an image's files, and all of
them together one on the running machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tpu_image.catalogue import boot_writes
from tpu_image.catalogue.boot_loader import DEFAULTS, KERNEL_INSTALL, BootEntry, BootLoader, read_boot_loader
from tpu_image.catalogue.kernel_parameters import (
    IDLE,
    IOMMU,
    PARAMETERS,
    THP,
    KernelParameter,
    Reading,
    readings,
)
from tpu_image.catalogue.requirement import Evidence, Profile, Requirement, Status, Verdict
from tpu_image.formats.grub_defaults import LINUX, LINUX_DEFAULT, GrubDefaults
from tpu_image.formats.kernel_cmdline import KernelCommandLine
from tpu_image.formats.shell_assignments import UNKNOWN
from tpu_image.trees.base import Tree
from tpu_image.trees.overlay import Overlay

SOURCE = "document, section “Parametri del kernel” (R7)"
PROC_CMDLINE = "/proc/cmdline"
THP_ENABLED = "/sys/kernel/mm/transparent_hugepage/enabled"

LINE_LIMIT = 2047
"""Bytes of the command line that the kernel reads (``COMMAND_LINE_SIZE``, arch/x86/include/asm/setup.h)."""

_REBOOT = "run: tpu-image apply, then reboot"
_SEVERITY = (Status.FAIL, Status.UNKNOWN, Status.WARN)


class _Finding(NamedTuple):
    """One place where a parameter is not as it should be."""

    status: Status
    place: str
    reason: str
    evidence: Evidence
    remedy: str = ""
    """What a person does about it, where apply cannot."""


def required_options(parameter: KernelParameter, profile: Profile) -> tuple[str, ...]:
    """The options without which a machine of the profile does not work; the others only warn."""
    if parameter is IOMMU and not any(g.needs_scalable_mode for g in profile.generations):
        return parameter.wanted[:1]
    return parameter.wanted


def judged(reading: Reading, required: Sequence[str]) -> Status:
    """What a reading comes to where only some options are required."""
    if set(reading.lacking) & set(required):
        return Status.FAIL
    if set(reading.undecided) & set(required):
        return Status.UNKNOWN
    return Status.PASS if reading.is_clean else Status.WARN


def worst(readings: Iterable[Reading], required: Sequence[str]) -> Reading:
    """The reading that spoils most."""
    order = (Status.PASS, Status.WARN, Status.UNKNOWN, Status.FAIL)
    return max(readings, key=lambda reading: order.index(judged(reading, required)))


def explained(parameter: KernelParameter, reading: Reading) -> str:
    """Say in a few words why a parameter is not as it should be."""
    reasons = [f"{token} is not understood by the kernel" for token in reading.mangled]
    if reading.opposed:
        reasons.append(f"{reading.opposed} decides")
    elif reading.lacking == parameter.wanted and not reasons:
        reasons.append("missing")
    elif reading.lacking and reading.lacking != parameter.wanted:
        reasons.append(f"{', '.join(reading.lacking)} is missing")
    if reading.undecided:
        reasons.append("only a shell could tell")
    return "; ".join(reasons)


class KernelParameterRequirement(Requirement):
    """A kernel parameter is in effect on every boot entry and will be on those that update-grub makes."""

    source = SOURCE
    changes = (
        "adds the parameter to GRUB_CMDLINE_LINUX in /etc/default/grub.d/99-tpu-image.cfg and to every entry "
        "of grub.cfg and of /boot/loader/entries; tokens that contradict it are corrected where they stand"
    )

    def __init__(self, name: str, parameter: KernelParameter, why: str) -> None:
        self.id = name
        self.parameter = parameter
        self.title = f"the kernel boots with {parameter.token}"
        self.why = why

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        """Judge every boot entry and what the next ones are made from."""
        loader = read_boot_loader(tree)
        if not loader.entries and not loader.has_defaults:
            names = ", ".join(loader.others)
            return self.unknown(
                f"boots by {names}, whose entries are not read here: check the running machine",
                remedy=f"put {self.parameter.token} on the command line of {names}",
            )
        required = required_options(self.parameter, profile)
        findings = [*self._findings(loader, required), *self._cut_off(loader)]
        findings += [*self._unread(loader), *self._written_later(tree)]
        if findings:
            return self._verdict(findings, len(loader.entries))
        if not loader.entries:
            return self.warned(
                f"no boot entry yet; the defaults carry {self.parameter.token}: update-grub will write it",
                self._defaults_evidence(loader.defaults),
                remedy="run update-grub when the image has its disk, then check again",
            )
        return self.passed(
            f"{self.parameter.token} is on every boot entry ({len(loader.entries)}) and in the defaults",
            *self._good_evidence(loader),
        )

    def plan(self, overlay: Overlay, profile: Profile) -> None:
        """Put the parameter where it is not in effect."""
        del profile
        if any(self._findings(read_boot_loader(overlay), self.parameter.wanted)):
            # Half of the code on boot loaders is for editing alone, and a check must start quickly.
            from tpu_image.catalogue.boot_loader_edit import put_parameter

            put_parameter(overlay, self.parameter)

    def _findings(self, loader: BootLoader, required: Sequence[str]) -> Iterator[_Finding]:
        yield from self._in_entries(loader, required)
        if loader.has_defaults:
            yield from self._in_defaults(loader, required)
        if loader.kernel_install is not None:
            reading = self.parameter.read(loader.kernel_install)
            yield from self._finding(reading, required, "in what kernel-install adds", KERNEL_INSTALL, 1)

    def _cut_off(self, loader: BootLoader) -> Iterator[_Finding]:
        """Find entries on which the parameter stands behind what the kernel reads."""
        for entry in loader.entries:
            for line in entry.lines:
                read, size = _as_read(entry, line)
                if read is not line and self.parameter.read(read) != self.parameter.read(line):
                    reason = f"the command line has {size} bytes, of which the kernel reads {LINE_LIMIT}"
                    evidence = Evidence(entry.path, entry.line, reason, self.parameter.token)
                    remedy = f"shorten the command line of entry “{entry.title}”"
                    yield _Finding(Status.FAIL, "on", reason, evidence, remedy)

    def _unread(self, loader: BootLoader) -> Iterator[_Finding]:
        """Name what GRUB takes in from where it cannot be followed."""
        for evidence in loader.unread:
            reason = f"{evidence.path}:{evidence.line} takes in what is not read here: {evidence.found}"
            remedy = "check the running machine, or name the file by its path below /boot"
            yield _Finding(Status.UNKNOWN, "in other entries", reason, evidence, remedy)

    def _written_later(self, tree: Tree) -> Iterator[_Finding]:
        """Find what sets huge pages otherwise once the kernel runs."""
        written = boot_writes.last_write(tree, THP_ENABLED) if self.parameter is THP else None
        if written is not None and written[0] not in THP.wanted:
            evidence = written[1]._replace(expected=THP.token)
            reason = f"{evidence.path}:{evidence.line} writes “{written[0]}” to {THP_ENABLED}"
            remedy = f"take line {evidence.line} out of {evidence.path}"
            yield _Finding(Status.FAIL, "after the boot", reason, evidence, remedy)

    def _finding(
        self, reading: Reading, required: Sequence[str], place: str, path: str, line: int, prefix: str = ""
    ) -> Iterator[_Finding]:
        status = judged(reading, required)
        if status is not Status.PASS:
            reason = explained(self.parameter, reading)
            yield _Finding(status, place, reason, Evidence(path, line, prefix + reason, self.parameter.token))

    def _in_entries(self, loader: BootLoader, required: Sequence[str]) -> Iterator[_Finding]:
        for entry in loader.entries:
            reading = worst((self.parameter.read(line) for line in entry.lines), required)
            prefix = f"entry “{entry.title}”{', which boots by default' if entry.boots else ''}: "
            yield from self._finding(reading, required, "on", entry.path, entry.line, prefix)

    def _in_defaults(self, loader: BootLoader, required: Sequence[str]) -> Iterator[_Finding]:
        defaults = loader.defaults
        reading = worst(readings(defaults, self.parameter), required)
        path, line = self._deciding(defaults, reading)
        yield from self._finding(reading, required, "in the GRUB defaults", path, line, _effective(defaults))
        for file in () if loader.shell_appends else defaults.files:
            for assignment in file.assignments:
                if assignment.appends:
                    written = f"{assignment.name}+={assignment.value.raw}"
                    expected = f'{assignment.name}="${{{assignment.name}}}"{assignment.value.raw}'
                    evidence = Evidence(file.path, assignment.line, written, expected)
                    reason = "dash, which update-grub runs in, does not know += and stops there"
                    yield _Finding(Status.WARN, "in the GRUB defaults", reason, evidence)

    def _deciding(self, defaults: GrubDefaults, reading: Reading) -> tuple[str, int]:
        """The file and line that a person has to look at."""
        for variable in (LINUX_DEFAULT, LINUX):
            value = defaults.value(variable)
            if reading.undecided and value.unknowns:
                return value.unknowns[-1].path, value.unknowns[-1].line
            at = max((value.text.find(t) for t in (*reading.mangled, reading.opposed) if t), default=-1)
            place = value.locate(at, at + 1) if at >= 0 else None
            if place is not None:
                return place[0].path, place[0].line
        path, line = defaults.deciding(LINUX)
        return path or DEFAULTS, line

    def _verdict(self, findings: Sequence[_Finding], entries: int) -> Verdict:
        status = next(status for status in _SEVERITY if any(f.status is status for f in findings))
        decisive = [f for f in findings if f.status is status]
        bad_entries = sum(f.place == "on" for f in decisive)
        places = [f"on {bad_entries} of {entries} boot entries"] if bad_entries else []
        places += dict.fromkeys(f.place for f in decisive if f.place != "on")
        reasons = "; ".join(list(dict.fromkeys(f.reason for f in decisive))[:3])
        states = {Status.FAIL: "is not in effect", Status.UNKNOWN: "may not be in effect"}
        state = "is missing" if reasons == "missing" else states.get(status, "needs attention")
        message = f"{self.parameter.token} {state} {' and '.join(places)}"
        message += "" if reasons == "missing" else f": {reasons}"
        remedy = next((f.remedy for f in decisive if f.remedy), self.remedy)
        return Verdict(self.id, status, message, tuple(f.evidence for f in findings), remedy)

    def _good_evidence(self, loader: BootLoader) -> Iterator[Evidence]:
        for entry in loader.entries:
            if entry.boots:
                found = f"entry “{entry.title}”, which boots by default: {self.parameter.token}"
                yield Evidence(entry.path, entry.line, found, self.parameter.token)
        if loader.has_defaults:
            yield self._defaults_evidence(loader.defaults)

    def _defaults_evidence(self, defaults: GrubDefaults) -> Evidence:
        path, line = defaults.deciding(LINUX)
        return Evidence(path or DEFAULTS, line, _effective(defaults).removesuffix(": "), self.parameter.token)


def _as_read(entry: BootEntry, line: KernelCommandLine) -> tuple[KernelCommandLine, int]:
    """Give the part of a line that the kernel reads, and the bytes of all that it is given."""
    content = line.text.encode("utf-8", "surrogateescape")
    before = len(f"BOOT_IMAGE={entry.kernel} ".encode("utf-8", "surrogateescape"))
    size = before + len(content)
    if size <= LINE_LIMIT:
        return line, size
    return KernelCommandLine.parse(content[: max(LINE_LIMIT - before, 0)].decode("utf-8", "replace")), size


def _effective(defaults: GrubDefaults) -> str:
    """The two variables as they come out, … for what is not known."""
    values = ((name, defaults.value(name).text.replace(UNKNOWN, "…")) for name in (LINUX, LINUX_DEFAULT))
    return " ".join(f'{name}="{value}"' for name, value in values) + ": "


class RunningKernel(Requirement):
    """The running kernel was started with every parameter."""

    id = "machine.kernel"
    title = "the running kernel was started with every TPU parameter"
    why = "What boot files say takes effect at the next boot alone."
    source = SOURCE
    remedy = _REBOOT
    live = True

    def observe(self, tree: Tree, profile: Profile) -> Verdict:
        """Judge /proc/cmdline."""
        text = tree.read_text_if_present(PROC_CMDLINE)
        if text is None:
            return self.unknown(f"{PROC_CMDLINE} is not there: /proc is not mounted", Evidence(PROC_CMDLINE))
        line = KernelCommandLine.parse(text)
        found = [(parameter, parameter.read(line)) for parameter in PARAMETERS]
        statuses = [judged(reading, required_options(parameter, profile)) for parameter, reading in found]
        evidence = tuple(
            Evidence(PROC_CMDLINE, 1, explained(parameter, reading), parameter.token)
            for (parameter, reading) in found
            if not reading.is_clean
        )
        if not evidence:
            tokens = " ".join(parameter.token for parameter in PARAMETERS)
            return self.passed(
                f"the kernel was started with {tokens}", Evidence(PROC_CMDLINE, 1, text.strip())
            )
        bad = [f"{e.expected} ({e.found})" for e in evidence]
        if Status.FAIL in statuses:
            return self.failed(f"the kernel was started without {', '.join(bad)}", *evidence)
        return self.warned(f"the kernel's command line needs attention: {', '.join(bad)}", *evidence)


class RunningHugePages(Requirement):
    """Transparent huge pages are in use everywhere, because the command line says so."""

    id = "machine.thp"
    title = "transparent huge pages are always used, and the command line asks for it"
    why = "TPU hosts move large buffers; some kernels default to it and the next one may not."
    source = SOURCE
    remedy = _REBOOT
    live = True

    def observe(self, tree: Tree, profile: Profile) -> Verdict:
        """Judge what the kernel does and why."""
        del profile
        enabled = tree.read_text_if_present(THP_ENABLED)
        text = tree.read_text_if_present(PROC_CMDLINE)
        if enabled is None or text is None:
            missing = THP_ENABLED if enabled is None else PROC_CMDLINE
            return self.unknown(f"{missing} is not there to read", Evidence(missing))
        state = Evidence(THP_ENABLED, 1, enabled.strip(), "[always] madvise never")
        if "[always]" not in enabled.split():
            return self.failed(f"transparent huge pages are “{_chosen(enabled)}”, not “always”", state)
        reading = THP.read(KernelCommandLine.parse(text))
        if not reading.is_clean:
            reason = explained(THP, reading)
            asked = Evidence(PROC_CMDLINE, 1, reason, THP.token)
            return self.failed(
                f"huge pages are “always” by this kernel's default alone: {reason}", state, asked
            )
        return self.passed("transparent huge pages are “always”, as the command line asks", state)


def _chosen(enabled: str) -> str:
    return next((w.strip("[]") for w in enabled.split() if w.startswith("[")), enabled.strip())


REQUIREMENTS: tuple[Requirement, ...] = (
    KernelParameterRequirement(
        "kernel.idle", IDLE, "A processor that sleeps answers the TPU late: polling keeps latency low."
    ),
    KernelParameterRequirement(
        "kernel.iommu",
        IOMMU,
        "VFIO hands TPUs to programs through the IOMMU; v5p and TPU7x need its scalable mode.",
    ),
    KernelParameterRequirement(
        "kernel.thp", THP, "Huge pages make the large buffers of a TPU host cheaper to map and to pin."
    ),
    RunningKernel(),
    RunningHugePages(),
)
