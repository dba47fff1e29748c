"""``tpu-image boot``: from an image to what came of booting it. The recipe."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from tpu_image.catalogue.requirement import Profile
from tpu_image.lab import accelerator, judgement, machine, metadata_service, payload, qemu
from tpu_image.lab.chips import Chips
from tpu_image.lab.enclosure import Enclosure, EnclosureError, enclosed
from tpu_image.lab.errors import LabError
from tpu_image.lab.faults import Faults
from tpu_image.lab.forward import forwarding
from tpu_image.lab.metadata.faults import parse_all
from tpu_image.lab.metadata.server import MetadataServer
from tpu_image.lab.result import Artefact, BootResult, Emulator, MetadataRequest, Outcome
from tpu_image.lab.run_folder import run_folder
from tpu_image.lab.session import Ended, Observer, Session
from tpu_image.lab.throwaway import Disk, hashing, scratch_folder, sha256_of, throwaway_disk
from tpu_image.lab.vfio_user.process import Emulation, emulating

FIRMWARE = ("bios", "uefi")
MEMORY = 2048
"""MiB of the guest, unless told otherwise: what Debian and Ubuntu boot with at ease."""

CPUS_LIMIT = 2
"""Virtual processors at most: software emulation gains nothing from more on small machines."""

TIMEOUT = 900.0
"""Seconds from power-on: a small machine without KVM takes one to six minutes."""

_LATE_ADDRESS = "0000:01:00.0"
"""Where a late device appears: the only one behind the only PCIe port."""

Told = Callable[[str], None]
"""Is told in one line what is being done, or what a user needs to know."""


@dataclass(frozen=True)
class Request:
    """What to boot, and how.

    Attributes:
        metadata: attributes of the instance; ``run``: commands to run inside as root, each in a shell.
        timeout: seconds from power-on until the guest must have reported.
        keep: leave the guest running after its report; ``shell``: with the terminal as its console.
        ssh_port: port of this machine that leads to the guest's SSH; 0 takes a free one, None none.
        cpus, memory: virtual processors and MiB; 0 for what suits.
    """

    image: Path
    chips: Chips
    profile: Profile
    firmware: str = "bios"
    metadata: Mapping[str, str] = field(default_factory=dict)
    faults: Faults = Faults()
    run: Sequence[str] = ()
    timeout: float = TIMEOUT
    keep: bool = False
    shell: bool = False
    ssh_port: int | None = None
    cpus: int = 0
    memory: int = 0


def boot(request: Request, observer: Observer = lambda _: None, told: Told = lambda _: None) -> BootResult:
    """Boot an image with emulated TPUs, and judge it from inside.

    The image is only read. Killed at any moment, nothing of it goes on or stays, but for an empty run folder that
    the next session removes. Call it from the main thread: QEMU ends with the thread that started it.

    Raises:
        LabError: QEMU is missing or too old, or this machine does not let it be enclosed.
        DiskError, TreeError: the image cannot be read, or has no room for what the session needs inside.
        OSError: there is no room for what is made on the way.
    """
    found = qemu.find()
    with contextlib.ExitStack() as stack:
        digest = stack.enter_context(hashing(request.image))
        folder = stack.enter_context(run_folder())
        told("looking for a way to run the guest")
        chosen = accelerator.choose(found)
        emulator = Emulator(
            found.version, *chosen, request.firmware, request.cpus or _cpus(), request.memory or MEMORY
        )
        told(f"QEMU {found.version}, {chosen.name} ({chosen.reason})")
        told(f"reading {request.image}")
        disk = stack.enter_context(_disk(request, told))
        firmware = _firmware(stack, found, request.firmware)
        before = digest()
        emulation = stack.enter_context(
            emulating(folder, {function.name: function.identity for function in request.chips.functions()})
        )
        session = _session(request, emulation, told)
        stack.callback(session.close)
        ended, requests = _run(
            request, found, emulator, disk, firmware, emulation, session, folder, observer, told
        )
        stack.close()
    after = sha256_of(request.image)
    artefact = Artefact(str(request.image), request.image.stat().st_size, before, after)
    return _result(request, artefact, emulator, session, ended, requests)


def _cpus() -> int:
    return min(CPUS_LIMIT, len(os.sched_getaffinity(0)))


@contextlib.contextmanager
def _disk(request: Request, told: Told) -> Iterator[Disk]:
    content = payload.Payload(
        request.profile,
        request.run,
        run_seconds=request.timeout,
        settle_seconds=request.timeout * 0.6,
        late_device=request.faults.device_late,
        keep=request.keep or request.shell,
        shell=request.shell,
    )

    def report(done: int, total: int, written: int) -> None:
        del written
        told(f"reading {request.image}: {done >> 20} of {total >> 20} MiB")

    with throwaway_disk(request.image, lambda overlay: payload.write(content, overlay), report) as disk:
        yield disk


def _firmware(stack: contextlib.ExitStack, found: qemu.Qemu, name: str) -> tuple[BinaryIO, BinaryIO] | None:
    """Open the UEFI firmware and a copy of its variables; None for the BIOS, which QEMU has."""
    if name != "uefi":
        return None
    code, variables = found.uefi()
    copy = stack.enter_context(tempfile.TemporaryFile(dir=scratch_folder()))
    with variables.open("rb") as source:
        shutil.copyfileobj(source, copy)
    copy.flush()
    return stack.enter_context(code.open("rb")), copy


def _session(request: Request, emulation: Emulation, told: Told) -> Session:
    plug = None
    if request.faults.device_late:
        late = request.chips.functions()[-1]
        described = json.loads(late.device(emulation.socket(late.name)))
        described.pop("multifunction", None)
        plug = {**described, "addr": "00.0", "bus": machine.LATE_PORT}
    how = "switch it off, or press Ctrl-C" if not request.shell else "Ctrl-] ends it"
    return Session(
        request.timeout,
        keep=request.keep,
        shell=request.shell,
        plug=plug,
        kept=lambda: told(f"the guest has reported and goes on: {how}"),
    )


def expected(request: Request) -> tuple[str, ...]:
    """Give the addresses at which the guest must find TPU functions."""
    addresses = [function.address for function in request.chips.functions()]
    if request.faults.device_late:
        addresses[-1] = _LATE_ADDRESS
    return tuple(addresses)


def _run(
    request: Request,
    found: qemu.Qemu,
    emulator: Emulator,
    disk: Disk,
    firmware: tuple[BinaryIO, BinaryIO] | None,
    emulation: Emulation,
    session: Session,
    folder: Path,
    observer: Observer,
    told: Told,
) -> tuple[Ended, tuple[MetadataRequest, ...]]:
    """Switch the machine on and follow it to its end."""
    functions = request.chips.functions()
    present = functions[:-1] if request.faults.device_late else functions
    described = machine.Machine(
        emulator.accelerator,
        emulator.cpus,
        emulator.memory,
        iommu=not request.faults.iommu_off,
        devices=[function.device(emulation.socket(function.name)) for function in present],
        forward_ssh=request.ssh_port is not None,
    )
    files = machine.Files(
        disk.base.fileno(),
        disk.form,
        disk.overlay.fileno(),
        *((file.fileno() for file in firmware) if firmware else ()),
    )
    channels = machine.Channels(
        *(pair.theirs.fileno() for pair in (session.console_pair, session.report_pair, session.monitor_pair))
    )
    command = [*found.command, *machine.arguments(described, files, channels)]
    try:
        with (
            enclosed(
                command,
                environment={**os.environ, **found.environment},
                descriptors=[*files.descriptors, *channels],
                output=session.log_pipe[1],
                folder=folder,
            ) as enclosure,
            _services(request, enclosure, told) as service,
        ):
            session.power_on()
            service.power_on()
            try:
                ended = session.watch(enclosure.process, observer)
            except KeyboardInterrupt:
                if not session.guest.ended:
                    raise
                ended = Ended(Outcome.REPORTED)
            return ended, service.requests
    except EnclosureError as error:
        raise LabError(
            f"QEMU cannot be given a network of its own: {error}",
            "run it as root, or allow unprivileged user namespaces (sysctl user.max_user_namespaces, "
            "kernel.apparmor_restrict_unprivileged_userns=0)",
        ) from None


@contextlib.contextmanager
def _services(request: Request, enclosure: Enclosure, told: Told) -> Iterator[MetadataServer]:
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(
            metadata_service.serving(
                enclosure, request.chips, request.metadata, parse_all(request.faults.metadata)
            )
        )
        if request.ssh_port is not None:
            port = stack.enter_context(forwarding(request.ssh_port, enclosure.connections))
            told(f"the guest's SSH is at: ssh -p {port} USER@127.0.0.1")
        yield service


def _result(
    request: Request,
    artefact: Artefact,
    emulator: Emulator,
    session: Session,
    ended: Ended,
    requests: tuple[MetadataRequest, ...],
) -> BootResult:
    guest = session.guest.build()
    verdicts = ()
    if ended.outcome is Outcome.REPORTED:
        rests_on = judgement.Boot(guest, expected(request), artefact.unchanged)
        verdicts = judgement.judge(rests_on, session.guest.verdicts, request.profile)
    return BootResult(
        artefact,
        request.profile,
        request.chips.asked,
        emulator,
        ended.outcome,
        ended.reason,
        session.seconds,
        verdicts,
        guest,
        tuple(session.console.stages),
        requests,
        session.console.text,
        request.faults.words,
    )
