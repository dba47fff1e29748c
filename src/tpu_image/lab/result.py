"""What came of a boot in the lab, as values: reports are readings of :class:`BootResult`.

Times called ``seconds`` count from power-on as the host saw it; those of the guest's own clock say so. Every text
that stems from the guest is untrusted: it is bounded in length here and nothing else, so whoever shows it escapes it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NamedTuple

from tpu_image.catalogue.requirement import Profile, Status, Verdict, counted


class Outcome(enum.Enum):
    """How a boot ended."""

    REPORTED = "reported"
    """The guest reported from inside, and switched itself off."""
    TIMED_OUT = "timed-out"
    """No complete report came in time."""
    PANICKED = "panicked"
    """The guest's kernel panicked; :attr:`BootResult.reason` quotes it."""
    DIED = "died"
    """QEMU ended, or the guest switched off or started anew, before its report was complete."""
    LEFT = "left"
    """Whoever had its console left it before its report was complete."""


class Emulator(NamedTuple):
    """What the guest ran on.

    Attributes:
        version: of QEMU, such as ``11.1.3``.
        accelerator: ``kvm`` or ``tcg``.
        reason: why it is this accelerator, as one sentence without a full stop.
        firmware: ``bios`` or ``uefi``.
        cpus: virtual processors; ``memory``: MiB.
    """

    version: str
    accelerator: str
    reason: str
    firmware: str
    cpus: int
    memory: int

    @property
    def size(self) -> str:
        """How large it was, in words."""
        return f"{counted(self.cpus, 'CPU')}, {self.memory} MiB"


class Stage(NamedTuple):
    """A point that the boot reached, as its console showed: ``boot loader``, ``kernel``, ``systemd``, ``report``."""

    name: str
    seconds: float


class ApiStep(NamedTuple):
    """One call of the VFIO API that the probe made on a device, as a user without privileges.

    Attributes:
        interface: ``group`` (``/dev/vfio/GROUP`` in a container), or ``cdev`` (``/dev/vfio/devices/vfioN``, iommufd).
        name: such as ``open group``, ``SET_IOMMU``, ``GET_DEVICE_FD``, ``read config``, ``MAP_DMA``, ``RESET``.
        ok: whether it did what it should.
        detail: what came of it: an error's text, or what was read.
    """

    interface: str
    name: str
    ok: bool
    detail: str = ""


class Node(NamedTuple):
    """A device node of the guest. ``mode`` holds permission bits alone."""

    path: str
    mode: int
    uid: int
    gid: int


class Device(NamedTuple):
    """One PCI function of an emulated TPU, as the guest's kernel shows it.

    Attributes:
        address: domain, bus, device, function: ``0000:00:08.0``.
        generation: ``v6e``; empty where the ids are no TPU's.
        vendor, device, subsystem_vendor, subsystem_device: PCI ids.
        driver: empty where none is bound; ``group``: IOMMU group, empty where it is in none.
        nodes: device nodes that lead to it.
        steps: the VFIO calls made on it, in order; those after a failed one of an interface were not made.
    """

    address: str
    generation: str
    vendor: int
    device: int
    subsystem_vendor: int
    subsystem_device: int
    driver: str
    group: str
    nodes: tuple[Node, ...] = ()
    steps: tuple[ApiStep, ...] = ()


class BootTask(NamedTuple):
    """A unit of ours in the guest.

    Attributes:
        unit: its name.
        state: systemd's ActiveState; ``result``: systemd's Result (``success``, ``exit-code``, ``timeout``).
        status: what the unit says of itself (StatusText), or its last log line.
        started, finished: seconds of the guest's clock since its kernel started; None where it has not.
        cpu: seconds of processor time that its processes took; None where that is not counted.
    """

    unit: str
    state: str
    result: str
    status: str
    started: float | None
    finished: float | None
    cpu: float | None = None

    @property
    def duration(self) -> float | None:
        """Seconds that it took; None where it has not started or finished."""
        return None if self.started is None or self.finished is None else self.finished - self.started


class UnitTime(NamedTuple):
    """A unit's time to start, as in ``systemd-analyze blame``."""

    unit: str
    seconds: float


class BootTimes(NamedTuple):
    """What ``systemd-analyze`` measured in the guest: seconds of its own clock, None where it has no figure.

    Attributes:
        blame: the slowest units first.
        critical_chain: the lines of ``systemd-analyze critical-chain``.
        ours: seconds that the boot tasks cost: processor time of their units and of binding each function, which
            others run beside. None where there are none.
    """

    firmware: float | None = None
    loader: float | None = None
    kernel: float | None = None
    initrd: float | None = None
    userspace: float | None = None
    blame: tuple[UnitTime, ...] = ()
    critical_chain: tuple[str, ...] = ()
    ours: float | None = None

    @property
    def total(self) -> float:
        """Seconds of all phases together."""
        return sum(
            part or 0.0 for part in (self.firmware, self.loader, self.kernel, self.initrd, self.userspace)
        )


class LockedMemory(NamedTuple):
    """Whether somebody could lock 64 MiB: ``who`` is ``login``, ``service`` or ``root``."""

    who: str
    ok: bool
    detail: str = ""


class MetadataRequest(NamedTuple):
    """One request that the emulated metadata server answered. ``fault`` names the one it was answered with, if any."""

    seconds: float
    method: str
    path: str
    status: int
    fault: str = ""


class RunResult(NamedTuple):
    """A user's own command (``--run``) in the guest. ``status`` is None where it did not end in time."""

    command: str
    status: int | None
    output: str
    seconds: float = 0.0


class Artefact(NamedTuple):
    """The image that was booted: size in bytes, SHA-256 before and after in hexadecimal, empty once it is gone."""

    path: str
    size: int
    sha256_before: str
    sha256_after: str

    @property
    def unchanged(self) -> bool:
        """Whether the file is still what it was."""
        return self.sha256_before == self.sha256_after


@dataclass(frozen=True)
class GuestReport:
    """What the probe inside reported."""

    kernel: str = ""
    """Release of the running kernel."""
    system: str = ""
    """``PRETTY_NAME`` of /etc/os-release."""
    command_line: str = ""
    """/proc/cmdline."""
    user: str = ""
    """Whom the checker and the device probe ran as."""
    settled: bool = False
    """Whether the boot had finished when the probe began, rather than its cap been reached."""
    devices: tuple[Device, ...] = ()
    tasks: tuple[BootTask, ...] = ()
    times: BootTimes = field(default_factory=BootTimes)
    failed_units: tuple[str, ...] = ()
    kernel_warnings: tuple[str, ...] = ()
    """Lines of the kernel's log about parameters that an image for TPUs sets."""
    locked_memory: tuple[LockedMemory, ...] = ()
    run: tuple[RunResult, ...] = ()
    faults: tuple[str, ...] = ()
    """What the probe could not do, or said in a way that is not understood."""


@dataclass(frozen=True)
class BootResult:
    """Everything about one boot."""

    artefact: Artefact
    profile: Profile
    machine: str
    """The machine as it was asked for: ``v6e:4`` or ``ct6e-standard-4t``."""
    emulator: Emulator
    outcome: Outcome
    reason: str
    """Why it ended so, as one line; empty for :attr:`Outcome.REPORTED`."""
    seconds: float
    """From power-on to the complete report, or to the end of a guest without one."""
    verdicts: tuple[Verdict, ...] = ()
    """The checker's from inside (``machine.*``) and the lab's own (``lab.*``)."""
    guest: GuestReport = field(default_factory=GuestReport)
    stages: tuple[Stage, ...] = ()
    metadata: tuple[MetadataRequest, ...] = ()
    console: str = ""
    """The serial console's text, its end where it is long."""
    faults: tuple[str, ...] = ()
    """Faults that were asked for: ``metadata=down:30s``."""

    @property
    def ok(self) -> bool:
        """Whether the image passed: it reported, nothing fails or is unknown, and something passes."""
        statuses = {verdict.status for verdict in self.verdicts}
        holds = not statuses & {Status.FAIL, Status.UNKNOWN} and Status.PASS in statuses
        return self.outcome is Outcome.REPORTED and holds
