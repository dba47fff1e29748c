"""Running programs inside an image as root, apart from this machine: its own mounts, processes and names.

What runs sees the image as the only root, no disk but its own, and the network, which package managers need. Nothing
that it needs of this machine has to be cleaned up: see :mod:`tpu_image.customise.confinement`.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tpu_image.customise.environment import ENVIRONMENT, RESOLVER, STAND_INS, proxies
from tpu_image.customise.following import Account, follow
from tpu_image.customise.loop_devices import release
from tpu_image.customise.mounting import mounted_volumes
from tpu_image.customise.session import GIVEN, CustomisationError, Listener, Session
from tpu_image.disks.image_tree import open_tree
from tpu_image.disks.raw import open_raw

NEEDED = "run it as root, or with --run-in virtual-machine"

RELEASE_LIMIT = 10.0
"""Seconds that the kernel gets to let go of the block devices."""

START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from tpu_image.customise.confinement import main; main()"
)


class NamespaceExecutor:
    """Runs sessions in namespaces of this machine's kernel; needs root."""

    method = "namespace"

    def require(self) -> None:
        """Refuse an ordinary user, as :class:`~tpu_image.customise.session.Executor` says."""
        if os.geteuid() != 0:
            raise CustomisationError(
                f"an ordinary user cannot execute programs of the image in a namespace; {NEEDED}"
            )

    def execute(self, disk: BinaryIO, session: Session, listener: Listener) -> None:
        """Run a session, as :class:`~tpu_image.customise.session.Executor` says."""
        self.require()
        _Run(disk, session, listener).run()


class _Run:
    """One session from its start to its end."""

    def __init__(self, disk: BinaryIO, session: Session, listener: Listener) -> None:
        self._disk = disk
        self._session = session
        self._account = Account(session, listener, "mount the image")
        self._device = ""

    def run(self) -> None:
        prepared = self._request()
        with contextlib.ExitStack() as stack:
            output, output_end = _pipe(stack)
            events, events_end = _pipe(stack)
            request = {**prepared, "output": output_end, "events": events_end}
            passed = (self._disk.fileno(), output_end, events_end)
            process = stack.enter_context(_started(passed, output_end))
            for end in (output_end, events_end):
                os.close(end)
            assert process.stdin is not None  # noqa: S101 - asked for
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(request).encode() + b"\n")
                process.stdin.flush()
            # At its own end everything is unmounted: nothing that it tells is a reason to stop listening.
            follow({output: self._account.line, events: self._event}, self._account, lambda: False)
        self._await_release()
        self._judge()

    def _request(self) -> dict[str, Any]:
        with open_raw(f"/proc/self/fd/{self._disk.fileno()}") as source:
            volumes = [volume._asdict() for volume in mounted_volumes(open_tree(source))]
        session = self._session
        return {
            "disk": self._disk.fileno(),
            "volumes": volumes,
            "given": GIVEN,
            "files": {name: _text(content) for name, content in session.files.items()},
            "folders": {name: str(folder.resolve()) for name, folder in session.folders.items()},
            "stand_ins": [(RESOLVER, _resolver(), 0o644), *STAND_INS],
            "steps": [step.arguments for step in session.steps],
            "environment": {**ENVIRONMENT, **proxies(), **session.environment},
            "last_capability": int(Path("/proc/sys/kernel/cap_last_cap").read_text()),
        }

    def _event(self, data: bytes) -> None:
        event = json.loads(data)
        if "device" in event:
            self._device = event["device"]
        if "line" in event:
            self._account.remark(event["line"])
        if "status" in event:
            self._account.failed(event["status"])
        elif "step" in event:
            self._account.begin(event["step"])
        if "error" in event:
            self._account.error = event["error"]
        if "done" in event:
            self._account.done = True

    def _await_release(self) -> None:
        """Wait until the kernel has let go of the block device, which it does after the last process has ended."""
        deadline = time.monotonic() + RELEASE_LIMIT
        status = os.fstat(self._disk.fileno())
        while self._device and release(self._device, status) and time.monotonic() < deadline:
            time.sleep(0.01)

    def _judge(self) -> None:
        account = self._account
        if not (account.done or self._device or account.error):
            reason = account.tail[-1] if account.tail else "unshare ended"
            raise CustomisationError(
                f"this machine gives no namespaces ({reason}); build with --run-in virtual-machine"
            )
        account.judge()


def _pipe(stack: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe's two ends; the one to read from is closed by the stack."""
    reading, writing = os.pipe()
    stack.callback(os.close, reading)
    return reading, writing


@contextlib.contextmanager
def _started(passed: tuple[int, ...], output: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start the first process of new namespaces; at the block's end everything in them is ended."""
    package = Path(__file__).resolve().parents[2]
    command = [
        *("unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--"),
        *(sys.executable, "-I", "-S", "-c", START, str(package), f"build-{os.getpid()}"),
    ]
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stderr=output,
            pass_fds=passed,
            start_new_session=True,
            cwd="/",
            env={"PATH": os.defpath},
        )
    except FileNotFoundError as error:
        raise CustomisationError(f"{error.filename} is not installed; apt-get install util-linux") from None
    try:
        yield process
    finally:
        assert process.stdin is not None  # noqa: S101 - asked for
        with contextlib.suppress(OSError):
            process.stdin.close()  # which ends the first process, and so all
        process.wait()


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def _resolver() -> str:
    """This machine's resolver configuration."""
    try:
        return Path(RESOLVER).read_text(errors="surrogateescape")
    except OSError:
        return ""
