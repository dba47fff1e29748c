"""A boot in the lab as one HTML page: what came out, how the boot went, what the guest showed of its devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from tpu_image.report import elements
from tpu_image.report.boot import NOTHING_TO_DO
from tpu_image.report.elements import bullets, code, folded, section, status, text
from tpu_image.report.html import banner, counted, verdicts
from tpu_image.report.timeline import Span, plot, seconds

if TYPE_CHECKING:
    from tpu_image.catalogue.requirement import Requirement
    from tpu_image.lab.result import (
        ApiStep,
        BootResult,
        BootTask,
        Device,
        GuestReport,
        MetadataRequest,
        RunResult,
    )

SLOWEST = 12
"""Units of ``systemd-analyze blame`` that are shown."""

REQUESTS_SHOWN = 500


def render(result: BootResult, requirements: Sequence[Requirement]) -> str:
    """Write one boot; the requirements give verdicts their titles."""
    guest = result.guest
    return elements.page(
        f"tpu-image: boot of {result.artefact.path}",
        f"<h1>Boot of {text(result.artefact.path)}</h1>",
        banner(result.ok, _ending(result), counted(result.verdicts)),
        _facts(result),
        verdicts(result.verdicts, requirements),
        section("Boot timeline", _timeline(result), _slowest(guest)),
        section("Boot tasks", _tasks(guest.tasks)),
        section("Devices", _devices(guest.devices), _locked_memory(guest)),
        section("Failed units", bullets(map(code, guest.failed_units))),
        section("Kernel warnings", bullets(map(code, guest.kernel_warnings))),
        section("Commands", "".join(map(_run, guest.run))),
        section("Metadata requests", _requests(result.metadata)),
        section("What the probe could not tell", bullets(map(text, guest.faults))),
        section("Console", _console(result)),
    )


def _ending(result: BootResult) -> str:
    ending = result.outcome.value.replace("-", " ")
    return f"{ending} after {seconds(result.seconds)}" + (f": {result.reason}" if result.reason else "")


def _facts(result: BootResult) -> str:
    emulator, artefact, guest = result.emulator, result.artefact, result.guest
    hardware = f"{emulator.size}, {emulator.firmware.upper()}"
    digest = code(artefact.sha256_before)
    unchanged = status("pass", "unchanged") if artefact.unchanged else status("fail", "changed by the boot")
    return elements.facts(
        [
            ("Machine", text(f"{result.machine}; {hardware}")),
            ("Emulator", text(f"QEMU {emulator.version}, {emulator.accelerator.upper()}: {emulator.reason}")),
            ("Faults asked for", text(", ".join(result.faults))),
            ("System", text(guest.system)),
            ("Kernel", text(guest.kernel)),
            ("Command line", code(guest.command_line)),
            ("Checked as", text(guest.user)),
            ("Image", f"{artefact.size:,} bytes, SHA-256 {digest} {unchanged}"),
        ]
    )


def _timeline(result: BootResult) -> str:
    spans = [*_stages(result), *_phases(result), *_task_spans(result)]
    drawn = plot(spans, "Boot timeline")
    ours = result.guest.times.ours
    share = (
        f"{100 * ours / result.guest.times.total:.1f}%"
        if ours is not None and result.guest.times.total
        else ""
    )
    cost = (
        f" Our units held the boot up for {seconds(ours)}, {share} of it."
        if ours is not None and share
        else ""
    )
    caption = f"Seconds since power-on. Units marked as ours are those that tpu-image installs.{cost}"
    return f"<figure>{drawn}<figcaption>{text(caption)}</figcaption></figure>" if drawn else ""


def _stages(result: BootResult) -> Iterator[Span]:
    """From each point that the host saw to the next one."""
    ends = [*(stage.seconds for stage in result.stages[1:]), result.seconds]
    for stage, end in zip(result.stages, ends, strict=False):
        yield Span(f"host: {stage.name}", max(stage.seconds, 0.0), max(end, stage.seconds, 0.0))


def _kernel_started(result: BootResult) -> float:
    """When the guest's clock began, as the host saw it; 0 where it did not."""
    return next((max(stage.seconds, 0.0) for stage in result.stages if stage.name == "kernel"), 0.0)


def _phases(result: BootResult) -> Iterator[Span]:
    times, place = result.guest.times, _kernel_started(result)
    for name, length in (("kernel", times.kernel), ("initrd", times.initrd), ("userspace", times.userspace)):
        if length:
            yield Span(f"guest: {name}", place, place + max(length, 0.0))
            place += max(length, 0.0)


def _task_spans(result: BootResult) -> list[Span]:
    """Our units and what they did, in the order in which they started."""
    start = _kernel_started(result)
    spans = []
    for task in result.guest.tasks:
        if task.started is not None and task.finished is not None:
            begun = max(task.started, 0.0)
            spans.append(Span(task.unit, start + begun, start + max(task.finished, begun), ours=True))
    return sorted(spans, key=lambda span: span.start)


def _slowest(guest: GuestReport) -> str:
    ours = {task.unit for task in guest.tasks}
    spans = [
        Span(unit.unit, 0.0, max(unit.seconds, 0.0), unit.unit in ours)
        for unit in guest.times.blame[:SLOWEST]
    ]
    drawn = plot(spans, "Slowest units")
    caption = "Time that units took to start, the slowest first; they run at the same time as others."
    figure = (
        f"<h3>Slowest units</h3><figure>{drawn}<figcaption>{text(caption)}</figcaption></figure>"
        if drawn
        else ""
    )
    chain = "\n".join(guest.times.critical_chain)
    return figure + (folded("Critical chain", elements.lines(chain)) if chain else "")


def _tasks(tasks: Sequence[BootTask]) -> str:
    rows = [
        (
            _task_status(task),
            code(task.unit),
            text("" if task.started is None else seconds(task.started)),
            text("" if task.duration is None else seconds(task.duration)),
            text(task.status),
        )
        for task in tasks
    ]
    columns = ("State", "Unit", "Started", "Took", "What it says")
    return elements.table(columns, rows, numbers=(2, 3)) if rows else ""


def _task_status(task: BootTask) -> str:
    if task.result == NOTHING_TO_DO:
        return status("skip", "nothing to do")
    if task.state == "failed" or task.result not in ("", "success"):
        return status("fail", f"{task.state}: {task.result}")
    return status("pass" if task.started is not None else "unknown", task.state)


def _devices(devices: Sequence[Device]) -> str:
    columns = ("Address", "TPU", "Ids", "Driver", "IOMMU group", "Nodes", "VFIO API, as a user")
    rows = [
        (
            code(device.address, whole=True),
            text(device.generation) or status("unknown", "no TPU"),
            f"{_ids(device.vendor, device.device)} {_ids(device.subsystem_vendor, device.subsystem_device)}",
            text(device.driver) or status("fail", "none"),
            text(device.group) or status("fail", "none"),
            bullets(f"{code(node.path)} {node.mode:04o} {node.uid}:{node.gid}" for node in device.nodes)
            or status("fail", "none"),
            _api(device.steps),
        )
        for device in devices
    ]
    return elements.table(columns, rows) if rows else ""


def _ids(vendor: int, device: int) -> str:
    return code(f"{vendor:04x}:{device:04x}", whole=True)


def _api(steps: Sequence[ApiStep]) -> str:
    """One line for each interface, and the calls behind it."""
    interfaces = dict.fromkeys(step.interface for step in steps)
    shown = (_interface(name, [step for step in steps if step.interface == name]) for name in interfaces)
    return "".join(shown) or status("unknown", "not tried")


def _interface(name: str, steps: Sequence[ApiStep]) -> str:
    wrong = next((step for step in steps if not step.ok), None)
    if wrong is None:
        head = status("pass", f"{name}: {len(steps)} of {len(steps)} calls succeed")
    else:
        head = status("fail", f"{name}: {wrong.name}: {wrong.detail}")
    calls = (f"{status('pass' if step.ok else 'fail', step.name)} {code(step.detail)}" for step in steps)
    return folded(head, bullets(calls))


def _locked_memory(guest: GuestReport) -> str:
    shown = bullets(
        f"{status('pass' if locked.ok else 'fail', locked.who)} {text(locked.detail)}"
        for locked in guest.locked_memory
    )
    return f"<h3>Locking 64 MiB of memory</h3>{shown}" if shown else ""


def _run(run: RunResult) -> str:
    kind = "pass" if run.status == 0 else "fail"
    ended = "did not end in time" if run.status is None else f"status {run.status}"
    took = f" after {seconds(run.seconds)}" if run.seconds else ""
    return f"<h3>{code(run.command)}</h3><p>{status(kind, ended)}{text(took)}</p>{elements.lines(run.output)}"


def _requests(requests: Sequence[MetadataRequest]) -> str:
    rows = [
        (
            text(seconds(request.seconds)),
            text(request.method),
            code(request.path),
            text(request.status or "no answer"),
            text(request.fault),
        )
        for request in requests[:REQUESTS_SHOWN]
    ]
    if not rows:
        return ""
    shown = elements.table(("Time", "Method", "Path", "Status", "Fault"), rows, numbers=(0,))
    left = len(requests) - len(rows)
    more = f'<p class="soft">{left} later ones are left out.</p>' if left else ""
    return folded(f"{len(requests)} requests", shown + more)


def _console(result: BootResult) -> str:
    if not result.console:
        return ""
    return folded(
        "What the serial console showed", elements.lines(result.console), opened=bool(result.reason)
    )
