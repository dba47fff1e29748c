"""What runs in an image can run in a virtual machine, by any user; the disk is then as a namespace would leave it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import customise_lab as lab
from lab_processes import environment, processes
from tpu_image.customise.session import CustomisationError, Session, Step
from tpu_image.customise.virtual_machine import BEGINNING, VirtualMachineExecutor
from tpu_image.disks.archive import write_raw
from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.image import open_image
from tpu_image.disks.image_tree import ImageTree, open_tree

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("_qemu")]

FIRST = r"""
echo kept > /kept; echo kept > /boot/efi/kept; echo gone > /tmp/gone; echo gone > /run/gone
cat /etc/resolv.conf; cat /run/tpu-image/given/file; printf 'no end'
"""

SECOND = r"""
start-stop-daemon --start --exec /bin/false; ! policy-rc.d ssh start; ! test -e /run/systemd/system; ! read line
echo mine > /usr/sbin/policy-rc.d; test "$HOME" = /root; test "$MINE" = 'a "b" $c'; test "$0" = /run/tpu-image/second
sleep 987654 & test "$(findmnt --noheadings --output SOURCE /)" = /dev/sda1
test -b "$(readlink -f "/dev/disk/by-uuid/$1")"
"""


class Executed(NamedTuple):
    """A disk in which a session ran, and what was heard of it."""

    disk: Path
    heard: lab.Heard
    before: ImageTree

    @property
    def tree(self) -> ImageTree:
        return open_tree(open_image(self.disk))


def copied(base: Path, path: Path) -> Path:
    """A raw disk that may be changed."""
    with open_image(base) as source, path.open("wb") as file:
        write_raw(EditedDisk(source), file, hashed=False)
    return path


@pytest.fixture(scope="module")
def raw(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied(base, tmp_path_factory.mktemp("raw") / "disk.raw")


@pytest.fixture
def disk(raw: Path, tmp_path: Path) -> Path:
    subprocess.run(["cp", "--sparse=always", raw, tmp_path / "disk.raw"], check=True)
    return tmp_path / "disk.raw"


@pytest.fixture(scope="module")
def executed(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Executed:
    """Scripts, and packages of those that everything depends on, replaced while the machine runs of them."""
    folder = tmp_path_factory.mktemp("executed")
    disk = folder / "disk.raw"
    subprocess.run(["cp", "--sparse=always", raw, disk], check=True)
    (folder / "given").mkdir()
    (folder / "given/file").write_text("of the user's folder\n")
    before = open_tree(open_image(raw))
    assert before.root.volume.file_system is not None
    uuid = before.root.volume.file_system.uuid
    sources = "/run/tpu-image/sources"
    apt = ("/usr/bin/apt-get", "-y", "-qq", "-o", "Dpkg::Use-Pty=0", "-o", "Acquire::Retries=3")
    session = Session(
        (
            Step("first", ("/run/tpu-image/first",)),
            Step("second", ("/run/tpu-image/second", uuid)),
            Step("update", (*apt, "update")),
            Step("install", (*apt, "install", "--reinstall", "libc6", "dash", "cowsay")),
        ),
        {
            "first": b"#!/bin/sh -e\n" + FIRST.encode(),
            "second": b"#!/bin/sh -e\n" + SECOND.encode(),
            "sources/debian.sources": lab.debian_sources(),
            "apt.conf": f'Dir::Etc::sourcelist "/dev/null";\nDir::Etc::sourceparts "{sources}";\n'.encode(),
        },
        {"given": folder / "given"},
        {"MINE": 'a "b" $c', "APT_CONFIG": "/run/tpu-image/apt.conf"},
    )
    heard = lab.Heard()
    with disk.open("r+b") as file:
        VirtualMachineExecutor().execute(file, session, heard)
    return Executed(disk, heard, before)


def test_steps_run_in_order_and_what_they_write_is_heard(executed: Executed) -> None:
    assert executed.heard.steps == [BEGINNING, "first", "second", "update", "install"]
    assert executed.heard.lines[:3] == [
        "nameserver 10.0.2.3",
        "of the user's folder",
        "no end",
    ]
    assert any(line.startswith("Setting up cowsay") for line in executed.heard.lines)


def test_the_disk_holds_what_was_written_and_its_file_systems_are_clean(executed: Executed) -> None:
    tree = executed.tree
    assert tree.read_text("/kept") == tree.read_text("/boot/efi/kept") == "kept\n"
    for folder in ("/tmp", "/run", "/dev"):
        assert tree.names(folder) == executed.before.names(folder)
    assert "\nPackage: cowsay\nStatus: install ok installed\n" in tree.read_text(
        "/var/lib/dpkg/status", 1 << 26
    )
    for place in tree.places:
        assert place.volume.partition is not None
        is_clean(executed.disk, place.volume.kind, place.volume.partition.start, place.volume.partition.size)


def is_clean(disk: Path, kind: str, start: int, size: int) -> None:
    """Have the file system's own checker find nothing to complain of."""
    if kind == "ext4":
        lab.clean(disk, start)
        return
    volume = disk.with_name("volume")
    with disk.open("rb") as file:
        file.seek(start)
        volume.write_bytes(file.read(size))
    found = subprocess.run(["fsck.vfat", "-n", volume], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def test_what_stood_in_is_taken_away_unless_something_else_took_its_place(executed: Executed) -> None:
    before, tree = executed.before, executed.tree
    assert tree.read_text("/usr/sbin/policy-rc.d") == "mine\n"
    for path in ("/etc/resolv.conf", "/usr/sbin/start-stop-daemon"):
        assert tree.lstat(path) == before.lstat(path)
    assert tree.read_bytes("/usr/sbin/start-stop-daemon") == before.read_bytes("/usr/sbin/start-stop-daemon")
    for folder in ("/etc", "/usr/sbin", "/etc/initramfs-tools/conf.d"):
        assert {name for name in tree.names(folder) if "tpu-image" in name} == set()


def execute(disk: Path, session: Session) -> None:
    with disk.open("r+b") as file:
        VirtualMachineExecutor().execute(file, session, lab.Heard())


def test_a_failure_names_the_step_and_shows_the_last_lines(disk: Path) -> None:
    with pytest.raises(CustomisationError) as caught:
        execute(disk, lab.shell("echo before; sleep 1000 & kill -TERM $$"))
    assert (caught.value.message, caught.value.output) == ("script: was ended by SIGTERM", ("before",))


def test_a_machine_that_ends_by_itself_is_an_end_before_the_time(disk: Path) -> None:
    with pytest.raises(CustomisationError, match="script: the virtual machine ended"):
        execute(disk, lab.shell("echo c > /proc/sysrq-trigger; sleep 1000"))


def test_what_takes_too_long_is_ended(disk: Path) -> None:
    session = Session((Step("wait", ("/usr/bin/sleep", "1000")),), time_limit=4)
    with pytest.raises(CustomisationError, match="did not end within 4 seconds"):
        execute(disk, session)


BUILD = """
import sys
from pathlib import Path
from tpu_image.customise.customisation import Customisation, Script
from tpu_image.customise.execution import executed
from tpu_image.customise.virtual_machine import VirtualMachineExecutor
from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.image import open_image

class Loud:
    def step(self, name): print("step", flush=True)
    def line(self, text): print("line", flush=True)
    def waiting(self, name, seconds): pass

with open_image(sys.argv[1]) as base:
    wanted = Customisation(scripts=(Script("long", b"echo working; sleep 1000"),))
    with executed(EditedDisk(base), wanted, VirtualMachineExecutor, Loud(), folder=Path(sys.argv[2])):
        print("done", flush=True)
"""


def test_a_kill_leaves_nothing(base: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUILD, str(base), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(tmp_path)) as build:
        assert build.stdout is not None
        assert [build.stdout.readline() for _ in range(3)] == ["step\n", "step\n", "line\n"]
        assert len(processes(tmp_path.name)) == 2
        build.send_signal(signal.SIGKILL)
    assert lab.eventually(lambda: not processes(tmp_path.name))
    assert not os.listdir(tmp_path)
