"""From the guest's messages to :class:`~tpu_image.lab.result.GuestReport` and the checker's verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tpu_image.catalogue import hardware
from tpu_image.catalogue.requirement import Evidence, Status, Verdict
from tpu_image.formats.printable import escaped
from tpu_image.lab.messages import GuestError, Message
from tpu_image.lab.result import (
    ApiStep,
    BootTask,
    BootTimes,
    Device,
    GuestReport,
    LockedMemory,
    Node,
    RunResult,
    UnitTime,
)

COUNT_LIMIT = 1000
"""Things of one kind that are kept: devices, steps, units, lines."""

FAULTS_LIMIT = 50
EVIDENCE_LIMIT = 64
VERDICTS_LIMIT = 200
OUTPUT_LIMIT = 512 * 1024
OUTPUTS_LIMIT = 8 * 1024 * 1024
"""Characters of what one command printed, and all together: every one may become ten in a report."""

CHECKERS = ("user", "root")
ID_LIMIT = 0xFFFF
"""Of a PCI id."""


class GuestReportBuilder:
    """Takes messages in any order, and gives what they come to."""

    def __init__(self) -> None:
        self.report = GuestReport()
        self.ended = False
        self.restarting = False
        """Whether it has said that it starts anew, and nothing since."""
        self.doing = ""
        self.wanted: list[str] = []
        self.no_python = False
        self.verdicts: dict[str, dict[str, Verdict]] = {}
        """Verdicts by whom the checker ran as (``user``, ``root``), then by requirement."""
        self._devices: dict[str, Device] = {}
        self._steps: dict[str, list[ApiStep]] = {}
        self._room = OUTPUTS_LIMIT
        self._handlers: dict[str, Callable[[Message], None]] = {
            "blame": self._take_blame,
            "check": self._take_check,
            "critical-chain": self._take_critical_chain,
            "device": self._take_device,
            "end": self._take_end,
            "failed-units": self._take_failed_units,
            "fault": lambda message: self.fault(message.text("text")),
            "kernel-log": self._take_kernel_log,
            "locked-memory": self._take_locked_memory,
            "no-python": self._take_no_python,
            "restart": self._take_restart,
            "run": self._take_run,
            "settled": self._take_settled,
            "step": self._take_step,
            "step-begins": self._take_step_begins,
            "system": self._take_system,
            "task": self._take_task,
            "times": self._take_times,
            "want": lambda message: self.wanted.append(message.text("what", 40)),
        }

    def take(self, message: Message) -> None:
        """Take a message; one that is not understood is a fault."""
        try:
            kind = message.text("kind", 40)
            handler = self._handlers.get(kind)
            if handler is None:
                raise GuestError(f"the kind {kind!r} is unknown")
            handler(message)
        except GuestError as error:
            self.fault(f"not understood: {error}")

    def fault(self, text: str) -> None:
        """Note what went wrong inside, or with what came from there."""
        if len(self.report.faults) < FAULTS_LIMIT:
            self._update(faults=(*self.report.faults, text))

    def build(self) -> GuestReport:
        """Give the report."""
        devices = tuple(
            device._replace(steps=tuple(self._steps.get(address, ())))
            for address, device in sorted(self._devices.items())
        )
        times = self.report.times._replace(ours=cost_of(self.report.tasks, self.report.times.total))
        return replace(self.report, devices=devices, times=times)

    def _update(self, **changes: object) -> None:
        self.report = replace(self.report, **changes)  # type: ignore[arg-type]

    def _take_end(self, message: Message) -> None:
        del message
        self.ended = True

    def _take_restart(self, message: Message) -> None:
        del message
        self.restarting = True

    def _take_no_python(self, message: Message) -> None:
        self.no_python = True
        self._update(kernel=message.text("kernel"))
        self.fault("the image has no Python 3.8 or newer: nothing was measured inside")

    def _take_step_begins(self, message: Message) -> None:
        self.doing = escaped(message.text("name", 80))
        self.restarting = False

    def _take_system(self, message: Message) -> None:
        fields = ("kernel", "system", "command_line", "user")
        self._update(**{field: message.text(field) for field in fields})

    def _take_settled(self, message: Message) -> None:
        self._update(settled=message.flag("settled"))

    def _take_device(self, message: Message) -> None:
        if len(self._devices) >= COUNT_LIMIT:
            return
        ids = [
            message.count(name, ID_LIMIT)
            for name in ("vendor", "device", "subsystem_vendor", "subsystem_device")
        ]
        generation = hardware.identify(ids[0], ids[1], ids[3])
        nodes = tuple(
            Node(node.text("path"), node.count("mode"), node.count("uid"), node.count("gid"))
            for node in message.objects("nodes", 8)
        )
        address = message.text("address", 40)
        name = generation.name if generation else ""
        self._devices[address] = Device(
            address,
            name,
            ids[0],
            ids[1],
            ids[2],
            ids[3],
            message.text("driver", 80),
            message.text("group", 40),
            nodes,
        )

    def _take_step(self, message: Message) -> None:
        address = message.text("address", 40)
        if address not in self._steps and len(self._steps) >= COUNT_LIMIT:
            return
        steps = self._steps.setdefault(address, [])
        if len(steps) >= COUNT_LIMIT:
            return
        name, interface = message.text("name", 80), message.text("interface", 20)
        steps.append(ApiStep(interface, name, message.flag("ok"), message.text("detail")))

    def _take_locked_memory(self, message: Message) -> None:
        one = LockedMemory(message.text("who", 20), message.flag("ok"), message.text("detail"))
        self._update(locked_memory=(*self.report.locked_memory, one)[:COUNT_LIMIT])

    def _take_task(self, message: Message) -> None:
        task = BootTask(
            message.text("unit", 200),
            message.text("state", 40),
            message.text("result", 40),
            message.text("status"),
            message.number_or_none("started"),
            message.number_or_none("finished"),
            message.number_or_none("cpu"),
        )
        self._update(tasks=(*self.report.tasks, task)[:COUNT_LIMIT])

    def _take_times(self, message: Message) -> None:
        at = {
            name: message.number_or_none(name)
            for name in ("firmware", "loader", "initrd", "userspace", "finish")
        }
        self._update(times=boot_times(at, self.report.times))

    def _take_blame(self, message: Message) -> None:
        blame = (*self.report.times.blame, UnitTime(message.text("unit", 200), message.number("seconds")))
        self._update(times=self.report.times._replace(blame=blame[:COUNT_LIMIT]))

    def _take_critical_chain(self, message: Message) -> None:
        self._update(times=self.report.times._replace(critical_chain=message.texts("lines", COUNT_LIMIT)))

    def _take_failed_units(self, message: Message) -> None:
        self._update(failed_units=message.texts("units", COUNT_LIMIT))

    def _take_kernel_log(self, message: Message) -> None:
        self._update(kernel_warnings=message.texts("lines", COUNT_LIMIT))

    def _take_run(self, message: Message) -> None:
        output = message.text("output", OUTPUT_LIMIT)
        if len(output) > self._room:
            output = output[: self._room]
            self.fault("the commands printed more than is kept")
        result = RunResult(
            message.text("command"),
            message.whole_or_none("status"),
            output,
            message.number("seconds"),
        )
        self._room -= len(output)
        self._update(run=(*self.report.run, result)[:COUNT_LIMIT])

    def _take_check(self, message: Message) -> None:
        verdicts = [
            verdict_of(each) for each in message.inner("document").objects("verdicts", VERDICTS_LIMIT)
        ]
        who = message.text("who", 20)
        if who not in CHECKERS:
            raise GuestError(f"nobody runs the checker as {who!r}")
        self.verdicts[who] = {verdict.requirement: verdict for verdict in verdicts}


def cost_of(tasks: Sequence[BootTask], end: float) -> float | None:
    """Give what tasks cost the boot, as :attr:`BootTimes.ours` has it; those after its ``end`` cost it nothing."""
    during = [task for task in tasks if task.started is not None and task.started <= end]
    if not during:
        return None
    spans = sorted(
        (task.started or 0.0, task.finished)
        for task in during
        if task.cpu is None and task.finished is not None
    )
    cost, reached = sum(task.cpu or 0.0 for task in during), 0.0
    for started, finished in spans:
        cost += max(0.0, finished - max(started, reached))
        reached = max(reached, finished)
    return cost


def verdict_of(message: Message) -> Verdict:
    """Read a verdict of the checker's JSON.

    Raises:
        GuestError: it is none.
    """
    try:
        status = Status(message.text("status"))
    except ValueError:
        raise GuestError("a verdict has no known status") from None
    evidence = tuple(
        Evidence(each.text("path"), each.count("line"), each.text("found"), each.text("expected"))
        for each in message.objects("evidence", EVIDENCE_LIMIT)
    )
    return Verdict(
        message.text("requirement", 100), status, message.text("message"), evidence, message.text("remedy")
    )


def boot_times(at: dict[str, float | None], times: BootTimes) -> BootTimes:
    """Make phases of the manager's timestamps, as systemd-analyze does (``boot_times`` in src/analyze).

    Firmware's and loader's are counted backwards from the kernel's start, the others forwards.
    """
    userspace, initrd, finish = at["userspace"], at["initrd"], at["finish"]
    firmware, loader = at["firmware"], at["loader"]
    return times._replace(
        firmware=None if firmware is None else firmware - (loader or 0.0),
        loader=loader,
        kernel=initrd if initrd is not None else userspace,
        initrd=None if initrd is None or userspace is None else userspace - initrd,
        userspace=None if userspace is None or finish is None else max(finish - userspace, 0.0),
    )
