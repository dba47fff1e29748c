"""Running programs inside an image in a virtual machine of its own: without root, and behind a kernel of its own.

The image's own kernel starts in QEMU with a shell script in place of init. This machine's kernel mounts nothing of it;
what runs there reaches the network as the user who builds does.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import subprocess
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from tpu_image.customise.confinement import IN_MEMORY
from tpu_image.customise.following import LINE_LIMIT, Account, ending_of, follow
from tpu_image.customise.guest_kernel import guest_kernel
from tpu_image.customise.guest_machine import MEMORY, Files, Machine, arguments
from tpu_image.customise.guest_session import START_NEEDS, device_of, size_of, write_session
from tpu_image.customise.mounting import MountedVolume, mounted_volumes
from tpu_image.customise.session import CustomisationError, Listener, Session
from tpu_image.disks.image_tree import ImageTree, open_tree
from tpu_image.disks.raw import open_raw
from tpu_image.lab import accelerator, qemu
from tpu_image.lab.accelerator import Accelerator
from tpu_image.lab.errors import LabError
from tpu_image.lab.qmp import Monitor, QmpError
from tpu_image.lab.session import Pair
from tpu_image.lab.throwaway import nameless_file, reopened
from tpu_image.parent_death import ends_with_us
from tpu_image.report.printable import printable
from tpu_image.trees.base import Kind

START_LIMIT = {"kvm": 60.0, "tcg": 600.0}
"""Seconds in which the script must be heard: a second and ten on a quiet machine."""

CPUS_LIMIT = 4
MIB = 1 << 20
BEGINNING = "start its kernel in a virtual machine"

FULL = "there is no room for what is written to the disk: name a result in a folder with more"
BROKEN = (
    "the copy of the disk, in the folder of the result, cannot be read or written: see this machine's log"
)

CONSOLE_TAIL = 10
"""Lines of the console that are told where the script was never heard."""

END_LIMIT = 1.0
"""Seconds that QEMU gets to end after it has closed all that it says something by."""


class VirtualMachineExecutor:
    """Runs sessions in QEMU, by the image's own kernel; needs no privilege."""

    method = "virtual-machine"

    def __init__(self) -> None:
        self._found: tuple[qemu.Qemu, Accelerator] | None = None

    def require(self) -> None:
        """Find a QEMU, as :class:`~tpu_image.customise.session.Executor` says."""
        if self._found is None:
            try:
                found = qemu.find(tpus=False)
                ends_with_us()
            except LabError as error:
                raise CustomisationError(
                    f"packages, remove, run, kernel and pip execute programs inside the image: {error}"
                ) from None
            except FileNotFoundError as error:
                raise CustomisationError(f"{error.filename} {error.strerror}") from None
            with _refusals():
                self._found = found, accelerator.choose(found)

    def execute(self, disk: BinaryIO, session: Session, listener: Listener) -> None:
        """Run a session, as :class:`~tpu_image.customise.session.Executor` says."""
        self.require()
        assert self._found is not None  # noqa: S101 - just required
        found, chosen = self._found
        run = _Run(disk, session, listener, found, chosen.name)
        with _refusals():
            run.run()
        if chosen.name == "kvm" and not run.heard and not run.account.out_of_time():
            # A test guest ran with KVM, and until the script is heard nothing is changed.
            self._found = found, Accelerator("tcg", "the image's kernel did not start with KVM")
            listener.line(f"{self._found[1].reason}: once more, in software emulation")
            self.execute(disk, session, listener)
            return
        run.account.judge()


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Give what the lab refuses as an executor says it."""
    try:
        yield
    except LabError as error:
        raise CustomisationError(str(error)) from None


class _Run:
    """One session from its start to its end; ``heard`` is whether its script was."""

    def __init__(
        self, disk: BinaryIO, session: Session, listener: Listener, found: qemu.Qemu, accelerated: str
    ) -> None:
        self._disk = disk
        self._session = session
        self._listener = listener
        self._qemu = found
        self._accelerator = accelerated
        self._token = secrets.token_hex(16).encode()
        self._console: deque[str] = deque(maxlen=CONSOLE_TAIL)
        self._panicked = False
        self._log: deque[str] = deque(maxlen=1)
        self.account = Account(session, listener, BEGINNING)
        self._started = 0.0
        self.heard = False

    def run(self) -> None:
        """Start the machine, and follow it until everything is on the disk or nothing can be any more."""
        self._listener.step(BEGINNING)
        with contextlib.ExitStack() as stack:
            pairs = console, port, monitor = Pair(), Pair(), Pair()
            for pair in pairs:
                stack.callback(pair.close)
            machine, files = self._prepare(stack, *(pair.theirs.fileno() for pair in pairs))
            asked = Monitor(monitor.ours)
            command = [*self._qemu.command, *arguments(machine, files)]
            process, log = stack.enter_context(_started(command, self._qemu.environment, files.inherited))
            for pair in pairs:
                pair.theirs.close()
            self._started = self.account.seconds
            follow(
                {
                    console.ours.fileno(): self._take_console,
                    port.ours.fileno(): self._take,
                    monitor.ours.fileno(): lambda data: self._heed(asked.feed(data + b"\n")),
                    log: lambda data: None if b": warning: " in data else _keep(data, self._log),
                },
                self.account,
                self._is_over,
            )
            if not self.account.over:
                self._end(process)

    def _prepare(self, stack: contextlib.ExitStack, *ends: int) -> tuple[Machine, Files]:
        with open_raw(f"/proc/self/fd/{self._disk.fileno()}") as source:
            tree = open_tree(source)
            volumes = _volumes(tree)
            _require_programs(tree)
            kernel = guest_kernel(tree)
        given = stack.enter_context(nameless_file())
        write_session(given, self._session, volumes, self._token.decode())
        reading = stack.enter_context(reopened(given))
        files = Files(
            self._disk.fileno(),
            reading.fileno(),
            _holding(stack, kernel.kernel),
            _holding(stack, kernel.initramfs) if kernel.initramfs else None,
            *ends,
        )
        # In the guest four fifths of the memory may hold the session's files.
        memory = MEMORY + size_of(self._session) * 5 // 4 // MIB
        return Machine(self._accelerator, _cpus(), memory, device_of(volumes[0])), files

    def _take(self, data: bytes) -> None:
        """Take a line of what the script tells, or of what the image's programs write."""
        # Without stty(1) the terminal adds a return to each line.
        token, _, told = data.removesuffix(b"\r").partition(b" ")
        if token != self._token:
            if self.heard:
                self.account.line(data)
            return
        self.heard = True
        word, _, rest = told.decode("utf-8", "replace").partition(" ")
        number = int(rest) if re.fullmatch("[0-9]{1,4}", rest) else None
        if word == "step" and number is not None and number < len(self._session.steps):
            self.account.begin(number)
        elif word == "status" and number is not None:
            self.account.failed(number)
        elif word == "line":
            self.account.remark(rest)
        elif word == "error":
            self.account.error = printable(rest)
        elif word == "done":
            self.account.done = True

    def _take_console(self, data: bytes) -> None:
        """Keep a line of the console, but not the registers and the stack that follow a panic's first line."""
        if not (self._panicked and data.lstrip().startswith(b"[")):
            _keep(data, self._console)
        self._panicked = self._panicked or b"Kernel panic" in data

    def _heed(self, events: Iterator[tuple[str, Mapping[str, Any]]]) -> None:
        """Take what QEMU tells. Where its files get no more room it stops the machine, and waits."""
        try:
            for name, values in events:
                if name == "BLOCK_IO_ERROR":
                    self.account.error = FULL if values.get("nospace") is True else BROKEN
        except QmpError as error:
            self.account.error = str(error)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Say how QEMU ended, and what was said last."""
        said = [*self._log, *reversed(self._console)]
        status = 0
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(END_LIMIT)
        ending = ending_of(128 - status) if status < 0 else "ended"
        if status == -signal.SIGKILL:
            ending += ", as where this machine is short of memory"
        self.account.error = f"the virtual machine {ending}{f': {said[0]}' if said else ''}"
        if not self.heard:
            self.account.tail.extend(self._console)

    def _is_over(self) -> bool:
        if not self.heard and self.account.seconds - self._started > START_LIMIT[self._accelerator]:
            self.account.tail.extend(self._console)
            self.account.error = (
                f"nothing was heard of it within {START_LIMIT[self._accelerator]:.0f} seconds"
            )
        return self.account.over


def _require_programs(tree: ImageTree) -> None:
    for name in START_NEEDS:
        if not any(tree.is_file(f"{folder}/{name}") for folder in ("/bin", "/usr/bin", "/sbin", "/usr/sbin")):
            raise CustomisationError(
                f"the image has no {name}, without which nothing can be executed in a virtual machine"
            )


def _volumes(tree: ImageTree) -> list[MountedVolume]:
    for name in IN_MEMORY:
        entry = tree.root.tree.lstat(f"/{name}")
        if entry is None or entry.kind is not Kind.DIRECTORY:
            raise CustomisationError(f"/{name} is no folder in the image, so nothing can be executed in it")
    return mounted_volumes(tree)


def _holding(stack: contextlib.ExitStack, content: bytes) -> int:
    """Give a file with a content, and no name."""
    file = stack.enter_context(nameless_file())
    file.write(content)
    file.flush()
    return file.fileno()


def _cpus() -> int:
    return min(CPUS_LIMIT, len(os.sched_getaffinity(0)))


@contextlib.contextmanager
def _started(
    command: Sequence[str], environment: Mapping[str, str], inherited: Sequence[int]
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start QEMU, and give it, and where it says what is wrong; it is killed at the block's end, or when we are."""
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(
            [*ends_with_us(), *command],
            env={**os.environ, **environment},
            pass_fds=inherited,
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            start_new_session=True,
        )
        os.close(writing)
        try:
            yield process, reading
        finally:
            process.kill()
            process.wait()
    finally:
        os.close(reading)


def _keep(data: bytes, lines: deque[str]) -> None:
    """Keep a line that says something."""
    if line := printable(data.decode("utf-8", "replace").strip(), LINE_LIMIT):
        lines.append(line)
