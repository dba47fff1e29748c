"""What a build makes of a virtual machine, whatever the machine says: with a program in QEMU's place."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import build_bases as bases
from customise_lab import Heard, processes, shell
from tpu_image.customise import virtual_machine
from tpu_image.customise.guest_session import START_NEEDS, write_session
from tpu_image.customise.session import CustomisationError, Session, Step
from tpu_image.customise.virtual_machine import BEGINNING, VirtualMachineExecutor
from tpu_image.lab import accelerator, qemu
from tpu_image.lab.accelerator import Accelerator
from tpu_image.lab.errors import LabError

MACHINE = """\
import io, os, re, sys, tarfile, time
arguments = sys.argv[1:]
def opened(pattern):
    return next(int(m[1]) for word in arguments if (m := re.search(pattern, word)))
def told(*words): os.write(PORT, b"\\n" + b" ".join(words) + b"\\n")
PORT, CONSOLE = opened(r"socket,id=port,fd=(\\d+)"), opened(r"socket,id=console,fd=(\\d+)")
with open(opened(r"fd=(\\d+),set=2"), "rb") as disk, tarfile.open(fileobj=disk) as archive:
    settings = archive.extractfile(".session/settings.sh").read()
TOKEN = re.search(rb"TOKEN=(\\S+)", settings)[1]
KVM = "kvm" in arguments
MONITOR = opened(r"socket,id=monitor,fd=(\\d+)")
"""
"""What a stand-in for QEMU starts with: it knows what the guest would."""

SECONDS = 20


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with a kernel; nothing is ever written to it."""
    folder = tmp_path_factory.mktemp("disk")
    root = folder / "root"
    for name in (
        "dev",
        "proc",
        "run",
        "sys",
        "tmp",
        "bin",
        "boot",
        "etc",
        "usr/lib/systemd",
        "usr/share/initramfs-tools",
    ):
        (root / name).mkdir(parents=True)
    for name in START_NEEDS:
        (root / "bin" / name).touch()
    (root / "usr/lib/systemd/systemd").touch()
    (root / "etc/os-release").write_text("ID=debian\n")
    (root / "boot/vmlinuz-6.1").write_bytes(bytes(0x202) + b"HdrS")
    (root / "boot/initrd.img-6.1").write_bytes(b"initramfs")
    (root / "usr/share/initramfs-tools/init").touch()
    return bases.disk(folder / "disk.raw", (bases.ROOT, bases.file_system(folder / "root.ext4", root)))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A function that puts a program in QEMU's place."""

    def put(text: str, accelerated: str = "tcg") -> None:
        program = tmp_path / "machine.py"
        program.write_text(MACHINE + text)
        found = qemu.Qemu((sys.executable, "-I", "-S", str(program)), "11.1.0")
        monkeypatch.setattr(qemu, "find", lambda tpus: found)
        monkeypatch.setattr(accelerator, "choose", lambda _found: Accelerator(accelerated, "a test"))

    return put


def machines() -> list[int]:
    """Virtual machines of this process: others may have some beside it."""
    ours = f"PPid:\t{os.getpid()}\n"
    found = []
    for number in processes("tpu-image-build"):
        with contextlib.suppress(OSError):  # it has ended
            if ours in Path(f"/proc/{number}/status").read_text():
                found.append(number)
    return found


def execute(disk: Path, session: Session | None = None) -> Heard:
    heard = Heard()
    with disk.open("r+b") as file:
        VirtualMachineExecutor().execute(file, session or shell("true"), heard)
    return heard


def refused(disk: Path, session: Session | None = None) -> tuple[str, tuple[str, ...]]:
    with pytest.raises(CustomisationError) as caught:
        execute(disk, session)
    assert not machines()
    return caught.value.message, caught.value.output


WORKS = 'told(TOKEN, b"step 0"); os.write(PORT, b"one\\ntwo\\rthree\\n\\x1b[31mred"); told(TOKEN, b"done")\n'
WAITS = "time.sleep(1000)\n"


def test_what_the_machine_writes_is_heard_and_its_end_is_the_end(
    disk: Path, machine: Callable[..., None]
) -> None:
    machine(f'told(b"before anything"); {WORKS}{WAITS}')
    heard = execute(disk)
    assert heard.steps == [BEGINNING, "script"]
    assert heard.lines == ["one", "three", "\\x1b[31mred"]
    assert not machines()


def test_an_image_that_cannot_set_its_terminal_is_understood(
    disk: Path, machine: Callable[..., None]
) -> None:
    said = r'b"\r\n%s step 0\r\none\r\n\r\n%s done\r\n" % (TOKEN, TOKEN)'
    machine(f"os.write(PORT, {said}); {WAITS}")
    heard = execute(disk, Session((Step("script", ("/bin/true",)),), time_limit=SECONDS))
    assert (heard.steps, heard.lines) == ([BEGINNING, "script"], ["one"])


SAYS_ANYTHING = """
told(TOKEN); told(TOKEN, b"step 7"); told(TOKEN, b"step -1"); told(TOKEN, b"step \\xc2\\xb2"); told(TOKEN, b"status")
told(TOKEN, b"step " + b"9" * 5000); told(TOKEN, b"status 99999"); told(TOKEN, b"status \\xd9\\xa3"); told(b"done")
told(TOKEN + b"done"); told(TOKEN, b"line \\x1b]0;x\\x07\\xff"); os.write(PORT, b"x" * 300000 + os.urandom(5000))
"""


def test_nothing_that_a_machine_says_is_believed_beyond_its_meaning(
    disk: Path, machine: Callable[..., None]
) -> None:
    machine(SAYS_ANYTHING + WORKS + WAITS)
    heard = execute(disk)
    assert heard.steps == [BEGINNING, "script"]
    assert "\\x1b]0;x\\x07\ufffd" in heard.lines
    assert all(text.isprintable() and len(text) < 20_000 for text in heard.lines)


ENDS = {
    "a step fails": (
        'told(TOKEN, b"step 0"); os.write(PORT, b"why\\n"); told(TOKEN, b"status 3")\n' + WAITS,
        ("script: ended with status 3", ("why",)),
    ),
    "a step is killed": (
        'told(TOKEN, b"step 0"); told(TOKEN, b"status 137")\n' + WAITS,
        ("script: was ended by SIGKILL", ()),
    ),
    "the script cannot go on": (
        'told(TOKEN, b"error this kernel does not mount /boot\\x1b")\n' + WAITS,
        (f"{BEGINNING}: this kernel does not mount /boot\\x1b", ()),
    ),
    "QEMU refuses": (
        'print("qemu: unknown option"); sys.exit(1)',
        (f"{BEGINNING}: the virtual machine ended: qemu: unknown option", ()),
    ),
    "the kernel ends early": (
        'os.write(CONSOLE, b"Kernel panic - not syncing\\r\\n\\r\\n"); sys.exit(0)',
        (
            f"{BEGINNING}: the virtual machine ended: Kernel panic - not syncing",
            ("Kernel panic - not syncing",),
        ),
    ),
    "there is no room on this machine": (
        """told(TOKEN, b"step 0"); os.write(MONITOR, b'{"QMP": {}}\\n'); os.read(MONITOR, 99)\n"""
        """os.write(MONITOR, b'{"event": "BLOCK_IO_ERROR", "data": {"nospace": true}}\\n')\n""" + WAITS,
        (f"script: {virtual_machine.FULL}", ()),
    ),
    "this machine's disk is broken": (
        """os.write(MONITOR, b'{"event": "BLOCK_IO_ERROR", "data": {}}\\n'); told(TOKEN, b"done")\n"""
        + WAITS,
        (f"{BEGINNING}: {virtual_machine.BROKEN}", ()),
    ),
    "the monitor says anything": (
        'os.write(MONITOR, b"[\\n"); ' + WAITS,
        (f"{BEGINNING}: QEMU's monitor sends what is no JSON", ()),
    ),
    "a step failed, whatever is said after it": (
        'told(TOKEN, b"step 0"); told(TOKEN, b"status 3"); told(TOKEN, b"done")\n' + WAITS,
        ("script: ended with status 3", ()),
    ),
    "it ends amid a step without a word": (
        'told(TOKEN, b"step 0"); os.write(PORT, b"working\\n")',
        ("script: the virtual machine ended", ("working",)),
    ),
    "it is killed with something unread": (
        'told(TOKEN, b"step 0"); os.kill(os.getpid(), 9)',
        ("script: the virtual machine was ended by SIGKILL, as where this machine is short of memory", ()),
    ),
    "it crashes": (
        'told(TOKEN, b"step 0"); os.kill(os.getpid(), 11)',
        ("script: the virtual machine was ended by SIGSEGV", ()),
    ),
    "the kernel panics": (
        """os.write(CONSOLE, b"[ 1.2] it broke\\r\\n[ 1.3] Kernel panic: x\\r\\n[ 1.4] RSP: 0\\r\\n")""",
        (
            f"{BEGINNING}: the virtual machine ended: [ 1.3] Kernel panic: x",
            ("[ 1.2] it broke", "[ 1.3] Kernel panic: x"),
        ),
    ),
    "what QEMU warns of is not why it ends": (
        'print("qemu: warning: no such bit", flush=True); os.write(CONSOLE, b"sh: tar: not found\\nPanic\\n\\n")',
        (f"{BEGINNING}: the virtual machine ended: Panic", ("sh: tar: not found", "Panic")),
    ),
}


@pytest.mark.parametrize(("text", "expected"), ENDS.values(), ids=ENDS.keys())
def test_however_it_ends_that_is_said(
    disk: Path, machine: Callable[..., None], text: str, expected: tuple[str, tuple[str, ...]]
) -> None:
    machine(text)
    assert refused(disk) == expected


def test_a_machine_that_is_never_heard_ends_with_its_consoles_last_lines(
    disk: Path, machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(virtual_machine.START_LIMIT, "tcg", 0.5)
    machine(f'os.write(CONSOLE, b"Gave up waiting for root\\r\\n(initramfs) "); {WAITS}')
    message, output = refused(disk)
    assert message == f"{BEGINNING}: nothing was heard of it within 0 seconds"
    assert output == ("Gave up waiting for root",)


def test_the_time_to_start_begins_when_everything_is_packed(
    disk: Path, machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monotonic = time.monotonic
    passed = [0.0]

    def pack(*arguments: Any) -> None:
        passed[0] += virtual_machine.START_LIMIT["tcg"] + 1
        write_session(*arguments)

    monkeypatch.setattr(time, "monotonic", lambda: monotonic() + passed[0])
    monkeypatch.setattr(virtual_machine, "write_session", pack)
    machine(f'os.write(CONSOLE, b"[ 0.1] Linux\\n"); time.sleep(1); {WORKS}{WAITS}')
    assert execute(disk).steps == [BEGINNING, "script"]


def test_a_session_has_its_time_whatever_the_machine_is_at(disk: Path, machine: Callable[..., None]) -> None:
    machine(f'told(TOKEN, b"step 0"); {WAITS}')
    session = Session((Step("wait", ("/bin/true",)),), time_limit=1)
    assert refused(disk, session) == ("wait: did not end within 1 second", ())


def test_where_kvm_does_not_start_this_kernel_it_is_emulated(
    disk: Path, machine: Callable[..., None]
) -> None:
    machine(f"if KVM: sys.exit(1)\n{WORKS}{WAITS}", "kvm")
    heard = execute(disk)
    assert heard.steps == [BEGINNING, BEGINNING, "script"]
    assert heard.lines[0] == "the image's kernel did not start with KVM: once more, in software emulation"


def test_what_failed_under_kvm_is_not_done_again(disk: Path, machine: Callable[..., None]) -> None:
    machine(f'told(TOKEN, b"step 0"); told(TOKEN, b"status " + (b"1" if KVM else b"2")); {WAITS}', "kvm")
    assert refused(disk) == ("script: ended with status 1", ())
    machine('told(TOKEN, b"here"); os.write(CONSOLE, b"at work\\n")', "kvm")
    assert refused(disk) == (f"{BEGINNING}: the virtual machine ended: at work", ())


def test_without_qemu_the_message_says_what_to_do(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(**_: bool) -> qemu.Qemu:
        raise LabError("qemu-system-x86_64 is not installed", qemu.SETUP)

    monkeypatch.setattr(qemu, "find", find)
    message, _ = refused(disk)
    assert message == (
        "packages, remove, run, kernel and pip execute programs inside the image: "
        "qemu-system-x86_64 is not installed; run: tpu-image lab setup"
    )


def changed(disk: Path, folder: Path, change: Callable[[Path], None]) -> Path:
    """A disk like another but for a change of its root."""
    root = folder / "root"
    shutil.copytree(disk.parent / "root", root, symlinks=True)
    change(root)
    return bases.disk(folder / "changed.raw", (bases.ROOT, bases.file_system(folder / "root.ext4", root)))


def test_without_room_to_look_for_kvm_the_message_says_where(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def choose(_: qemu.Qemu) -> Accelerator:
        raise LabError("/full: No space left on device", "set TMPDIR to a folder with more")

    monkeypatch.setattr(qemu, "find", lambda tpus: qemu.Qemu((sys.executable,), "11.1.0"))
    monkeypatch.setattr(accelerator, "choose", choose)
    assert refused(disk) == ("/full: No space left on device; set TMPDIR to a folder with more", ())


@pytest.mark.parametrize("name", ["dev", "tmp"])
def test_a_root_whose_folders_are_links_is_refused(
    disk: Path, tmp_path: Path, machine: Callable[..., None], name: str
) -> None:
    def link(root: Path) -> None:
        (root / name).rmdir()
        (root / name).symlink_to("usr")

    machine(WORKS + WAITS)
    message, _ = refused(changed(disk, tmp_path, link))
    assert message == f"/{name} is no folder in the image, so nothing can be executed in it"


@pytest.mark.parametrize("name", START_NEEDS)
def test_an_image_that_could_never_be_heard_is_refused_at_once(
    disk: Path, tmp_path: Path, machine: Callable[..., None], name: str
) -> None:
    machine(WORKS + WAITS)
    message, _ = refused(changed(disk, tmp_path, lambda root: (root / "bin" / name).unlink()))
    assert message == f"the image has no {name}, without which nothing can be executed in a virtual machine"


def test_a_folder_without_room_is_named(
    disk: Path, machine: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(WORKS + WAITS)
    monkeypatch.setenv("TMPDIR", "/proc")
    with pytest.raises(FileNotFoundError, match="/proc"):
        execute(disk)
