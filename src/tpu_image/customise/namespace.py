"""Running programs inside an image as root, apart from this machine: its own mounts, processes and names.

What runs sees the image as the only root, no disk but its own, and the network, which package managers need. Nothing
that it needs of this machine has to be cleaned up: see :mod:`tpu_image.customise.confinement`.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tpu_image.customise.loop_devices import release
from tpu_image.customise.session import GIVEN, CustomisationError, Listener, Session
from tpu_image.disks.image_tree import ImageTree, Place, open_tree
from tpu_image.disks.raw import open_raw
from tpu_image.disks.volumes import EXT_KINDS, encoded, keys_of
from tpu_image.report.printable import printable

NEEDED = "run it as root; packages, remove, run, kernel and pip execute programs inside the image"

PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy")

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "USER": "root",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "DEBIAN_FRONTEND": "noninteractive",
    "DEBCONF_NONINTERACTIVE_SEEN": "true",
    "NEEDRESTART_SUSPEND": "1",
    # systemctl then changes files alone, and says that it ignores the rest (systemd, docs/ENVIRONMENT.md).
    "SYSTEMD_OFFLINE": "1",
}

STAND_INS = (
    # No service is started by a maintainer script (Debian policy 9.3.3.2; invoke-rc.d(8)).
    ("/usr/sbin/policy-rc.d", "#!/bin/sh\nexit 101\n", 0o755),
    ("/sbin/start-stop-daemon", "#!/bin/sh\nexit 0\n", 0o755),
    # "dep" would pack the drivers of the machine that builds (initramfs.conf(5)).
    ("/etc/initramfs-tools/conf.d/zz-tpu-image", "MODULES=most\n", 0o644),
)

TAIL = 20
"""Lines of a failed step that are told."""

LINE_LIMIT = 4096
"""Bytes of a line after which it is cut."""

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
            raise CustomisationError(f"nothing can be executed in the image by an ordinary user; {NEEDED}")

    def execute(self, disk: BinaryIO, session: Session, listener: Listener) -> None:
        """Run a session, as :class:`~tpu_image.customise.session.Executor` says."""
        self.require()
        _Run(disk, session, listener).run()


class _Run:
    """One session from its start to its end."""

    def __init__(self, disk: BinaryIO, session: Session, listener: Listener) -> None:
        self._disk = disk
        self._session = session
        self._listener = listener
        self._device = ""
        self._tail: deque[str] = deque(maxlen=TAIL)
        self._step = -1
        self._began = self._step_began = time.monotonic()
        self._error: str | None = None
        self._done = False
        self._status = 0

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
            self._follow(output, events)
        self._await_release()
        self._judge()

    def _request(self) -> dict[str, Any]:
        with open_raw(f"/proc/self/fd/{self._disk.fileno()}") as source:
            volumes = [_volume(place) for place in _places(open_tree(source))]
        session = self._session
        return {
            "disk": self._disk.fileno(),
            "volumes": volumes,
            "given": GIVEN,
            "files": {name: _text(content) for name, content in session.files.items()},
            "folders": {name: str(folder.resolve()) for name, folder in session.folders.items()},
            "stand_ins": [("/etc/resolv.conf", _resolver(), 0o644), *STAND_INS],
            "steps": [step.arguments for step in session.steps],
            "environment": {**ENVIRONMENT, **proxies(), **session.environment},
            "last_capability": int(Path("/proc/sys/kernel/cap_last_cap").read_text()),
        }

    def _follow(self, output: int, events: int) -> None:
        """Pass on what is written and told, until everything has ended."""
        with selectors.DefaultSelector() as selector:
            for descriptor, tell in ((output, self._line), (events, self._event)):
                selector.register(descriptor, selectors.EVENT_READ, _Lines(tell))
            while selector.get_map():
                ready = selector.select(1.0)
                for key, _ in ready:
                    data = os.read(key.fd, 65536)
                    key.data.take(data)
                    if not data:
                        selector.unregister(key.fd)
                seconds = time.monotonic() - self._began
                if seconds > self._session.time_limit:
                    self._error = f"did not end within {self._session.time_limit:.0f} seconds"
                    return
                if not ready:
                    self._listener.waiting(self._name, time.monotonic() - self._step_began)

    @property
    def _name(self) -> str:
        return self._session.steps[self._step].name if self._step >= 0 else "mount the image"

    def _line(self, data: bytes) -> None:
        # Programs show progress by returning to a line's start: the last state counts.
        state = data.decode("utf-8", "replace").rstrip("\r").rpartition("\r")[2]
        text = printable(state.expandtabs().rstrip(), LINE_LIMIT)
        if text:
            self._tail.append(text)
            self._listener.line(text)

    def _event(self, data: bytes) -> None:
        event = json.loads(data)
        if "device" in event:
            self._device = event["device"]
        if "line" in event:
            self._listener.line(printable(event["line"]))
        if "status" in event:
            self._status = event["status"]
        elif "step" in event:
            self._step = event["step"]
            self._step_began = time.monotonic()
            self._tail.clear()
            self._listener.step(self._name)
        if "error" in event:
            self._error = event["error"]
        if "done" in event:
            self._done = True

    def _await_release(self) -> None:
        """Wait until the kernel has let go of the block device, which it does after the last process has ended."""
        deadline = time.monotonic() + RELEASE_LIMIT
        status = os.fstat(self._disk.fileno())
        while self._device and release(self._device, status) and time.monotonic() < deadline:
            time.sleep(0.01)

    def _judge(self) -> None:
        if self._done:
            return
        if not self._device and not self._error:
            reason = self._tail[-1] if self._tail else "unshare ended"
            raise CustomisationError(
                f"this machine gives no namespaces ({reason}); build as root, outside containers that forbid them"
            )
        problem = _ending(self._status) if self._status else self._error or "ended early"
        raise CustomisationError(f"{self._name}: {problem}", tuple(self._tail))


class _Lines:
    """Cuts what a pipe gives into lines."""

    def __init__(self, tell: Any) -> None:
        self._tell = tell
        self._held = b""

    def take(self, data: bytes) -> None:
        """Take more of the pipe; nothing is its end."""
        *lines, self._held = (self._held + data).split(b"\n")
        if self._held and (not data or len(self._held) > 16 * LINE_LIMIT):
            lines.append(self._held)
            self._held = b""
        for line in lines:
            self._tell(line)


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


def _places(tree: ImageTree) -> list[Place]:
    return [place for place in tree.places if place.volume.kind in (*EXT_KINDS, "vfat")]


def _volume(place: Place) -> dict[str, Any]:
    volume = place.volume
    partition = volume.partition
    links = [f"/dev/disk/by-{key}/{encoded(value)}" for key, value in keys_of(volume) if key != "number"]
    return {
        "path": place.path,
        "kind": "ext4" if volume.kind in EXT_KINDS else volume.kind,
        "number": partition.number if partition else 0,
        "start": partition.start if partition else 0,
        "size": partition.size if partition else 0,
        "links": links,
    }


def _text(content: bytes) -> str:
    return content.decode("utf-8", "surrogateescape")


def _resolver() -> str:
    """This machine's resolver configuration, since the image's own may need a service that does not run."""
    try:
        return Path("/etc/resolv.conf").read_text(errors="surrogateescape")
    except OSError:
        return ""


def proxies() -> dict[str, str]:
    """Proxies that this process was told to use, in both spellings."""
    found = {}
    for name in PROXIES:
        for spelling in (name, name.upper()):
            if value := os.environ.get(spelling):
                found[spelling] = value
    return found


def _ending(status: int) -> str:
    import signal

    if status > 128:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(status - 128).name}"
    return f"ended with status {status}"
