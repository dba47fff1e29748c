"""However a session ends, it says how, and nothing of it goes on or stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from lab_images import add_kernel_parameters, edited
from lab_processes import environment, processes
from tpu_image.lab.accelerator import boots
from tpu_image.lab.qemu import find
from tpu_image.lab.run_folder import run_folder

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("_qemu")]

PATIENCE = 120
T = TypeVar("T")


def eventually(condition: Callable[[], T]) -> T:
    """Wait until a condition holds; what it says is true then."""
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.1)
    return found


class Running:
    """``tpu-image boot`` in a process of its own, with a folder of its own for what it makes."""

    def __init__(self, folder: Path, image: Path, *options: str) -> None:
        self.mark, self.folder = folder.name, folder
        command = [sys.executable, "-m", "tpu_image", "boot", str(image), "--no-agent", *options]
        self.process = subprocess.Popen(
            command, env=environment(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def qemu(self) -> int | None:
        """The guest's QEMU, once what makes its namespaces has become it; not the one that is asked what it can do."""
        for pid in processes(self.mark):
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b'"vfio-user-pci"' in words and b"enclosure.py" not in words:
                return pid
        return None


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []
    # A socket's path is short; that of a test's folder is not.
    with run_folder() as folder:

        def start(image: Path, *options: str) -> Running:
            started.append(Running(folder, image, *options))
            return started[-1]

        yield start
        for each in started:
            each.process.kill()
            each.process.communicate()


def test_a_killed_session_leaves_nothing_that_the_next_does_not_remove(
    start: Callable[..., Running], base: Path
) -> None:
    running = start(base)
    eventually(running.qemu)
    # Whose program is just being replaced by another has no environment for a moment (execve(2)).
    eventually(lambda: len(processes(running.mark)) >= 3)
    running.process.kill()
    running.process.wait()
    eventually(lambda: not processes(running.mark))
    with run_folder(running.folder) as own:
        assert {path for path in running.folder.iterdir() if path.is_dir()} == {own}
    assert {path.name for path in running.folder.iterdir()} == {"lock"}


def test_a_session_whose_qemu_is_killed_says_so(start: Callable[..., Running], base: Path) -> None:
    running = start(base)
    qemu = eventually(running.qemu)
    assert qemu is not None
    os.kill(qemu, signal.SIGKILL)
    out, _ = running.process.communicate(timeout=PATIENCE)
    assert running.process.returncode == 2
    assert "died after" in out
    assert "QEMU ended with status -9" in out
    assert {path.name for path in running.folder.iterdir()} == {"lock"}


def test_an_interrupt_ends_everything(start: Callable[..., Running], base: Path) -> None:
    running = start(base)
    eventually(running.qemu)
    running.process.send_signal(signal.SIGINT)
    _, err = running.process.communicate(timeout=PATIENCE)
    assert running.process.returncode == 130
    assert err.endswith("tpu-image: interrupted\n")
    assert not processes(running.mark)
    assert {path.name for path in running.folder.iterdir()} == {"lock"}


def test_a_guest_that_does_not_report_in_time_is_shown_with_its_console(
    start: Callable[..., Running], base: Path
) -> None:
    running = start(base, "--timeout", "12")
    out, _ = running.process.communicate(timeout=PATIENCE)
    assert running.process.returncode == 2
    assert "no complete report within 12 s; it had come to: " in out
    assert "the end of the console:\n" in out


def test_a_kernel_panic_is_named(start: Callable[..., Running], base: Path, tmp_path: Path) -> None:
    image = edited(
        base,
        tmp_path / "panics.raw",
        lambda overlay: add_kernel_parameters(overlay, "panic=0 rdinit=/none init=/none root=/dev/none"),
    )
    running = start(image, "--timeout", "300")
    out, _ = running.process.communicate(timeout=600)
    assert running.process.returncode == 2
    assert "kernel panic: " in out


def test_the_marker_of_the_kvm_probe_arrives_where_a_guest_runs() -> None:
    assert boots(find(), "tcg", PATIENCE)
