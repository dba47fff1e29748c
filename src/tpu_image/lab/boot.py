"""``tpu-image boot``: from an image to what came of booting it. The recipe."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

from tpu_image.catalogue.requirement import Profile
from tpu_image.disks.raw import open_raw
from tpu_image.hashing import sha256_of
from tpu_image.lab import accelerator, judgement, machine, metadata_service, payload, qemu, terminal
from tpu_image.lab.accelerator import Accelerator
from tpu_image.lab.chips import Chips
from tpu_image.lab.enclosure import RESOLVER, Enclosure, EnclosureError, enclosed
from tpu_image.lab.errors import LabError
from tpu_image.lab.faults import Faults
from tpu_image.lab.forward import forwarding
from tpu_image.lab.metadata.faults import parse_all
from tpu_image.lab.metadata.server import MetadataServer
from tpu_image.lab.result import Artefact, BootResult, Emulator, MetadataRequest, Outcome
from tpu_image.lab.run_folder import run_folder
from tpu_image.lab.session import Ended, Session
from tpu_image.lab.throwaway import Disk, nameless_file, require_bootable, throwaway_disk
from tpu_image.lab.vfio_user.process import Emulation, emulating
from tpu_image.progress import SILENT, Progress

FIRMWARE = ("bios", "uefi")
MEMORY = 2048
"""MiB of the guest, unless told otherwise: what Debian and Ubuntu boot with at ease."""

CPUS_LIMIT = 2
"""Virtual processors at most: software emulation gains nothing from more on small machines."""

TIMEOUT = 900.0
"""Seconds from power-on: a small machine without KVM takes one to six minutes."""

SHOWN = 4
"""Lines of the console that the verdict on a guest without a report quotes; the report has them all."""

PATIENCE = 60.0
"""Seconds in which a guest under KVM must come to its kernel: it takes a few."""

_LATE_ADDRESS = "0000:01:00.0"
"""Where a late device appears: the only one behind the only PCIe port."""


@dataclass(frozen=True)
class Request:
    """What to boot, and how.

    Attributes:
        image: a disk image; of a file without a name, ``/proc/self/fd/N``.
        metadata: attributes of the instance; ``run``: commands to run inside as root, each in a shell.
        timeout: seconds from power-on until the guest must have reported, for each of its boots.
        keep: leave the guest running after its report; ``shell``: with the terminal as its console.
        ssh_port: port of this machine that leads to the guest's SSH; 0 takes a free one, None none.
        boots: how often the guest boots, from what the boot before left; it is judged in the last.
        cpus, memory: virtual processors and MiB; 0 for what suits.
        name: what reports call the image; by default its path.
    """

    image: Path
    chips: Chips
    profile: Profile
    firmware: str = "bios"
    metadata: Mapping[str, str] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)
    run: Sequence[str] = ()
    timeout: float = TIMEOUT
    keep: bool = False
    shell: bool = False
    ssh_port: int | None = None
    boots: int = 1
    cpus: int = 0
    memory: int = 0
    name: str = ""


def boot(request: Request, progress: Progress = SILENT) -> BootResult:
    """Boot an image with emulated TPUs, and judge it from inside.

    The image is only read. Killed at any moment, nothing of it goes on or stays, but for an empty run folder that
    the next session removes. Call it from the main thread: QEMU ends with the thread that started it.

    Raises:
        LabError: QEMU is missing or too old, or this machine does not let it be enclosed.
        DiskError, TreeError: the image cannot be read, or has no room for what the session needs inside.
        OSError: there is no room for what is made on the way.
    """
    with open_raw(os.fspath(request.image)) as file:  # a pipe or /dev/zero would have no end
        size = file.size
    if not Path(RESOLVER).exists():
        raise LabError(
            f"{RESOLVER}: there is none, or its link leads nowhere", "make one; an empty file will do"
        )
    require_bootable(request.image)
    progress.at("looking for QEMU")
    found = qemu.find()
    before = sha256_of(request.image, progress)
    progress.at("looking for a way to run the guest")
    chosen = accelerator.choose(found)
    attempt = _attempt(request, found, chosen, progress)
    if chosen.name == "kvm" and attempt.ended.outcome is Outcome.DIED and not attempt.session.is_alive:
        progress.log(f"with KVM: {attempt.ended.reason}; starting anew in software emulation")
        fallback = Accelerator("tcg", "a test guest ran with KVM, and this image's did not")
        attempt = _attempt(request, found, fallback, progress)
    after = ""
    with contextlib.suppress(OSError):  # it is gone: what came of the boot is worth having all the same
        after = sha256_of(request.image, progress)
    return _result(request, Artefact(request.name or str(request.image), size, before, after), attempt)


class Attempt(NamedTuple):
    """One try to boot: on what, how it went, how it ended, what was asked of the metadata server."""

    emulator: Emulator
    session: Session
    ended: Ended
    requests: tuple[MetadataRequest, ...]


class Parts(NamedTuple):
    """What a machine is put together from."""

    emulator: Emulator
    qemu: qemu.Qemu
    disk: Disk
    firmware: tuple[BinaryIO, BinaryIO] | None
    tpus: Emulation
    folder: Path


def _attempt(request: Request, found: qemu.Qemu, chosen: Accelerator, progress: Progress) -> Attempt:
    emulator = Emulator(
        found.version, *chosen, request.firmware, request.cpus or _cpus(), request.memory or MEMORY
    )
    progress.log(f"QEMU {found.version}, {chosen.name} ({chosen.reason})")
    functions = {function.name: function.identity for function in request.chips.functions()}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(run_folder())
        disk = stack.enter_context(_disk(request, emulator, progress))
        firmware = _firmware(stack, found, request.firmware)
        tpus = stack.enter_context(emulating(folder, functions))
        parts = Parts(emulator, found, disk, firmware, tpus, folder)
        session = _session(request, parts, progress)
        stack.callback(session.close)
        ended, requests = _run(request, parts, session, progress)
    return Attempt(emulator, session, ended, requests)


def _cpus() -> int:
    """One processor is left to QEMU's own work: with idle=poll, which TPUs want, a guest's never rest."""
    return max(1, min(CPUS_LIMIT, len(os.sched_getaffinity(0)) - 1))


@contextlib.contextmanager
def _disk(request: Request, emulator: Emulator, progress: Progress) -> Iterator[Disk]:
    content = payload.Payload(
        request.profile,
        request.run,
        run_seconds=request.timeout,
        settle_seconds=request.timeout * 0.6,
        boots=request.boots,
        late_device=request.faults.device_late,
        keep=request.keep or request.shell,
        shell=terminal.here() if request.shell else None,
        patient=emulator.accelerator == "tcg",
    )
    with throwaway_disk(request.image, lambda overlay: payload.write(content, overlay), progress) as disk:
        yield disk


def _firmware(stack: contextlib.ExitStack, found: qemu.Qemu, name: str) -> tuple[BinaryIO, BinaryIO] | None:
    """Open the UEFI firmware and a copy of its variables; None for the BIOS, which QEMU has."""
    if name != "uefi":
        return None
    code, variables = found.uefi()
    copy = stack.enter_context(nameless_file())
    with variables.open("rb") as source:
        shutil.copyfileobj(source, copy)
    copy.flush()
    return stack.enter_context(code.open("rb")), copy


def _session(request: Request, parts: Parts, progress: Progress) -> Session:
    plug = None
    if request.faults.device_late:
        late = request.chips.functions()[-1]
        described = json.loads(late.device(parts.tpus.socket(late.name)))
        described.pop("multifunction", None)
        plug = {**described, "addr": "00.0", "bus": machine.LATE_PORT}
    return Session(
        request.timeout * request.boots,
        keep=request.keep,
        shell=request.shell,
        patience=PATIENCE if parts.emulator.accelerator == "kvm" else None,
        plug=plug,
        kept=lambda: progress.log("the guest has reported and goes on: switch it off, or press Ctrl-C"),
    )


def expected(request: Request) -> tuple[str, ...]:
    """Give the addresses at which the guest must find TPU functions."""
    addresses = [function.address for function in request.chips.functions()]
    if request.faults.device_late:
        addresses[-1] = _LATE_ADDRESS
    return tuple(addresses)


def _run(
    request: Request, parts: Parts, session: Session, progress: Progress
) -> tuple[Ended, tuple[MetadataRequest, ...]]:
    """Switch the machine on and follow it to its end."""
    files = machine.Files(
        parts.disk.base.fileno(),
        parts.disk.form,
        parts.disk.overlay.fileno(),
        *(file.fileno() for file in parts.firmware or ()),
    )
    pairs = (session.console_pair, session.report_pair, session.monitor_pair)
    channels = machine.Channels(*(pair.theirs.fileno() for pair in pairs))
    running = enclosed(
        [*parts.qemu.command, *machine.arguments(_machine(request, parts), files, channels)],
        environment={**os.environ, **parts.qemu.environment},
        descriptors=[*files.descriptors, *channels],
        output=session.log_pair.theirs.fileno(),
        folder=parts.folder,
    )
    try:
        with running as enclosure, _services(request, enclosure, progress) as service:
            session.power_on()
            service.power_on()
            return _watch(session, enclosure, progress), service.requests
    except EnclosureError as error:
        raise LabError(
            f"QEMU cannot be given a network of its own: {error}",
            "run it as root, or allow unprivileged user namespaces (sysctl user.max_user_namespaces, "
            "kernel.apparmor_restrict_unprivileged_userns=0)",
        ) from None


def _watch(session: Session, enclosure: Enclosure, progress: Progress) -> Ended:
    """Follow the guest; an interrupt after its report is how a guest that is kept is left."""
    try:
        return session.watch(enclosure.process, progress)
    except KeyboardInterrupt:
        if not session.guest.ended:
            raise
        return Ended(Outcome.REPORTED)


def _machine(request: Request, parts: Parts) -> machine.Machine:
    functions = request.chips.functions()
    present = functions[:-1] if request.faults.device_late else functions
    return machine.Machine(
        parts.emulator.accelerator,
        parts.emulator.cpus,
        parts.emulator.memory,
        iommu=not request.faults.iommu_off,
        devices=[function.device(parts.tpus.socket(function.name)) for function in present],
        forward_ssh=request.ssh_port is not None,
        restarts=request.boots > 1,
    )


@contextlib.contextmanager
def _services(request: Request, enclosure: Enclosure, progress: Progress) -> Iterator[MetadataServer]:
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(
            metadata_service.serving(
                enclosure, request.chips, request.metadata, parse_all(request.faults.metadata)
            )
        )
        if request.ssh_port is not None:
            port = stack.enter_context(forwarding(request.ssh_port, enclosure.connections))
            progress.log(f"the guest's SSH is at: ssh -p {port} USER@127.0.0.1")
        yield service


def _result(request: Request, artefact: Artefact, attempt: Attempt) -> BootResult:
    session, ended = attempt.session, attempt.ended
    guest = session.guest.build()
    tail = () if ended.outcome is Outcome.REPORTED else tuple(session.console.tail(SHOWN))
    commands = len(request.run) * request.boots
    rests_on = judgement.Boot(guest, expected(request), artefact.unchanged, ended.reason, tail, commands)
    return BootResult(
        artefact,
        request.profile,
        request.chips.asked,
        attempt.emulator,
        ended.outcome,
        ended.reason,
        session.ended_after,
        judgement.judge(rests_on, session.guest.verdicts, request.profile),
        guest,
        tuple(session.console.stages),
        attempt.requests,
        session.console.text,
        request.faults.words,
    )
