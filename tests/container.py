"""Boot a root with its own systemd in a container (systemd-nspawn) and let it run a script as a service."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

DONE = "var/lib/tpu-image-test/done"
"""Written by the script's service when all is over."""

SERVICE = """\
[Unit]
Description=The test in this container
After=multi-user.target

[Service]
Type=oneshot
TimeoutStartSec=300
ExecStart=/bin/bash /var/lib/tpu-image-test/script
ExecStopPost=/bin/sh -c 'echo "$EXIT_STATUS" > /%s.new && mv /%s.new /%s'
StandardOutput=file:/var/lib/tpu-image-test/output
StandardError=inherit

[Install]
WantedBy=multi-user.target
"""


def prepare(root: Path, script: str) -> Path:
    """Have the root run a script once it has booted; give the folder that is the script's own."""
    folder = root / "var/lib/tpu-image-test"
    folder.mkdir(parents=True)
    (root / "etc/cloud/cloud-init.disabled").touch()  # it would wait for a network
    (folder / "script").write_text(script)
    unit = root / "etc/systemd/system/tpu-image-test.service"
    unit.write_text(SERVICE % (DONE, DONE, DONE))
    (root / "etc/systemd/system/multi-user.target.wants/tpu-image-test.service").symlink_to(unit.name)
    return folder


def boot(root: Path, *, seconds: float = 240) -> str:
    """Boot until the script is over; give what it printed.

    The container has its own processes, mounts and network, and nothing of it outlives the call.
    """
    if shutil.which("systemd-nspawn") is None:
        pytest.fail("systemd-nspawn is missing: install systemd-container")
    done = root / DONE
    done.unlink(missing_ok=True)
    command = ["systemd-nspawn", "--quiet", "--directory", str(root), "--boot", "--private-network"]
    command += [
        "--register=no",
        "--keep-unit",
        "--console=pipe",
        "--machine",
        f"tpu-image-test-{os.getpid()}",
    ]
    log = root / "var/lib/tpu-image-test/console"
    with one_at_a_time(), log.open("wb") as console:
        container = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            deadline = time.monotonic() + seconds
            while not done.exists() and container.poll() is None and time.monotonic() < deadline:
                time.sleep(0.2)
        finally:
            stop(container)
    assert done.exists(), f"the container did not come to an end:\n{log.read_text(errors='replace')[-4000:]}"
    output = (root / "var/lib/tpu-image-test/output").read_text(errors="replace")
    assert done.read_text().strip() == "0", output
    return output


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Without a system manager on the host, containers would share one control group."""
    with (Path(tempfile.gettempdir()) / "tpu-image-test-container.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def stop(container: subprocess.Popen[bytes]) -> None:
    """The second signal makes systemd-nspawn kill everything in the container at once."""
    for _ in range(2):
        if container.poll() is None:
            container.send_signal(signal.SIGTERM)
            time.sleep(0.1)
    container.wait(timeout=30)


def remove(root: Path) -> None:
    """Take a root away again: each has hundreds of megabytes."""
    subprocess.run(["rm", "-rf", "--one-file-system", root], check=True)
