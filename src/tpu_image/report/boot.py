"""A boot in the lab as a report: the verdicts in every format that a check has, and all of it as text and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from enum import Enum
from typing import Any

from tpu_image.catalogue.requirement import Verdict
from tpu_image.lab import judgement
from tpu_image.lab.result import BootResult, Device, Outcome, RunResult
from tpu_image.report import text
from tpu_image.report.json import dump, profile_document, verdict_document
from tpu_image.report.model import Report
from tpu_image.report.printable import printable

SCHEMA = "tpu-image/boot/1"
"""Name of the JSON's shape: the number grows when a reader of the old shape could be misled."""

TAIL = 15
"""Lines of the console that people are shown where the guest did not report."""

NOTHING_TO_DO = "exec-condition"
"""``Result=`` of a unit whose ExecCondition= said that nothing is to be done (systemd.service(5))."""

BLAME = 5
OUTPUT_LINES = 5000
"""Lines of a command's output that people are shown: its end. All of it is in JSON."""

LINES_LIMIT = 1 << 20
"""Characters of one long text (the console, a command's output) in JSON."""


def report_of(result: BootResult) -> Report:
    """Give the verdicts as a check's report."""
    return Report(result.artefact.path, result.profile, result.verdicts, result.ok, judgement.requirements())


def render(result: BootResult, form: str, *, color: bool = False, quiet: bool = False) -> str:
    """Write a result in one of the formats of a check."""
    if form == "json":
        return dump(document(result))
    if form == "text":
        return render_text(result, color=color, quiet=quiet)
    if form == "html":
        from tpu_image.report import boot_page

        return boot_page.render(result, judgement.requirements())
    from tpu_image.report import junit, sarif

    return junit.render(report_of(result)) if form == "junit" else sarif.render(report_of(result))


def render_text(result: BootResult, *, color: bool = False, quiet: bool = False) -> str:
    """Write a result for people: the machine, what was found in it, the verdicts."""
    lines = [] if quiet else [*_machine(result), ""]
    if result.outcome not in (Outcome.REPORTED, Outcome.LEFT):  # who left it has seen it
        lines += ["the end of the console:", *(f"  {line}" for line in tail(result)), ""]
    for run in result.guest.run:
        lines += [*_run(run), ""]
    verdicts = text.render(report_of(result), color=color, quiet=quiet)
    if not quiet:
        verdicts = verdicts.partition("\n\n")[2]  # its heading names less than ours
    return "".join(f"{line}\n" for line in lines) + verdicts


def tail(result: BootResult, count: int = TAIL) -> list[str]:
    """Give the console's last lines that hold something, safe to show."""
    from tpu_image.lab.console import plain_line

    lines = (plain_line(line).rstrip() for line in result.console.splitlines())
    return [printable(line) for line in lines if line][-count:]


def _machine(result: BootResult) -> Iterator[str]:
    emulator, guest, times = result.emulator, result.guest, result.guest.times
    yield f"{printable(result.artefact.path)}: {result.machine}, {result.profile.platform.value}"
    yield (
        f"  QEMU {emulator.version}, {emulator.accelerator} ({emulator.reason}), {emulator.firmware}, "
        f"{emulator.size}"
    )
    if guest.system or guest.kernel:
        yield f"  {printable(guest.system)}, Linux {printable(guest.kernel)}"
    phases = {"kernel": times.kernel, "initrd": times.initrd, "userspace": times.userspace}
    told = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in phases.items() if seconds is not None)
    yield f"  {result.outcome.value} after {result.seconds:.0f} s" + (f"; guest: {told}" if told else "")
    if result.reason:
        yield f"  {printable(result.reason)}"
    for device in guest.devices:
        yield f"  {_device(device)}"
    for task in guest.tasks:
        took = "" if task.duration is None else f" in {task.duration:.2f} s"
        ended = "nothing to do" if task.result == NOTHING_TO_DO else printable(task.result) + took
        yield f"  {printable(task.unit)}: {ended}"
    for slow in times.blame[:BLAME]:
        yield f"  {slow.seconds:6.1f} s {printable(slow.unit)}"
    for fault in guest.faults:
        yield f"  inside: {printable(fault)}"


def _device(device: Device) -> str:
    nodes = ", ".join(f"{printable(node.path)} {node.mode:04o}" for node in device.nodes) or "no node"
    driver = printable(device.driver) or "no driver"
    calls = sum(step.ok for step in device.steps)
    return f"{printable(device.address)} {device.generation}: {driver}, {nodes}, {calls} VFIO calls succeeded"


def _run(run: RunResult) -> Iterator[str]:
    status = "did not end in time" if run.status is None else f"status {run.status}"
    yield f"$ {printable(run.command)}   ({status}, {run.seconds:.1f} s)"
    lines = run.output.splitlines()
    left = len(lines) - OUTPUT_LINES
    if left > 0:
        yield f"  ({left} earlier lines are left out; --format json has them)"
    for line in lines[-OUTPUT_LINES:]:
        yield f"  {printable(line)}"


def document(result: BootResult) -> dict[str, Any]:
    """Give a result as the values of a JSON document, in a fixed order."""
    artefact = {**_values(result.artefact), "unchanged": result.artefact.unchanged}
    return {
        "schema": SCHEMA,
        "artefact": artefact,
        "profile": profile_document(result.profile),
        "machine": result.machine,
        "emulator": _values(result.emulator),
        "outcome": result.outcome.value,
        "reason": printable(result.reason),
        "seconds": result.seconds,
        "ok": result.ok,
        "summary": {status.value: count for status, count in report_of(result).counts().items()},
        "verdicts": [verdict_document(verdict) for verdict in result.verdicts],
        "guest": _values(result.guest),
        "stages": _values(result.stages),
        "metadata": _values(result.metadata),
        "faults": _values(result.faults),
        "console": safe_lines(result.console),
    }


def safe_lines(text: str) -> str:
    """Make a text of many lines safe to show, and keep its lines; its end where it is long."""
    kept = text[-LINES_LIMIT:]
    return "\n".join(printable(line, limit=10_000) for line in kept.split("\n"))


def _values(value: object) -> Any:
    """Give a value of the result as JSON values: named tuples as objects by their fields."""
    if isinstance(value, Verdict):
        return verdict_document(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, str):
        return safe_lines(value)
    if hasattr(value, "_asdict"):
        return {name: _values(inner) for name, inner in value._asdict().items()}
    if is_dataclass(value):
        return {name: _values(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, tuple):
        return [_values(inner) for inner in value]
    return value
