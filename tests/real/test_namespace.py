"""What runs in an image sees the image alone, and nothing of it is left on the machine however it ends."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import build_bases as bases
import customise_lab as lab
from disk_tools import run
from tpu_image.customise import loop_devices, namespace
from tpu_image.customise.confinement import KEPT_CAPABILITIES
from tpu_image.customise.namespace import NamespaceExecutor
from tpu_image.customise.session import CustomisationError, Session, Step
from tpu_image.disks.image import open_image
from tpu_image.disks.image_tree import ImageTree, open_tree

pytestmark = pytest.mark.real

LOOP_SET_STATUS64, SIZE_OF_STATUS = 0x4C04, 232
"""Linux ``include/uapi/linux/loop.h``."""

RESOLV_CONF = b"# the image's own\nnameserver 192.0.2.1\n\xff"


@pytest.fixture(scope="module")
def system(debian_root_tar: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small system's disk; tests copy it."""
    return lab.small_system(debian_root_tar, tmp_path_factory.mktemp("system"))


@pytest.fixture
def disk(system: Path, tmp_path: Path) -> Path:
    """A copy of that disk for one test."""
    run("cp", "--sparse=always", system, tmp_path / "disk.raw")
    return tmp_path / "disk.raw"


def execute(disk: Path, session: Session) -> lab.Heard:
    heard = lab.Heard()
    with disk.open("r+b") as file:
        NamespaceExecutor().execute(file, session, heard)
    return heard


def tree_of(disk: Path) -> ImageTree:
    """The files of the disk as they are now."""
    return open_tree(open_image(disk))


def test_what_a_script_writes_is_on_the_disk_and_the_file_system_is_clean(disk: Path) -> None:
    heard = execute(
        disk, lab.shell("echo hello; echo kept > /kept; echo gone > /tmp/gone; echo gone > /run/gone")
    )
    assert (heard.steps, heard.lines) == (["script"], ["hello"])
    lab.clean(disk)
    tree = tree_of(disk)
    assert tree.read_text("/kept") == "kept\n"
    assert tree.names("/tmp") == tree.names("/run") == []


def test_a_disk_without_partitions_is_its_root(debian_root_tar: Path, tmp_path: Path) -> None:
    root = lab.small_root(debian_root_tar, tmp_path)
    disk = bases.file_system(tmp_path / "disk.raw", root, size=32 * bases.MIB)
    execute(disk, lab.shell("echo kept > /kept"))
    assert tree_of(disk).read_text("/kept") == "kept\n"
    lab.clean(disk, 0)


@pytest.mark.parametrize("label", ["gpt", "dos"])
def test_volumes_are_mounted_where_the_images_fstab_has_them(
    debian_root_tar: Path, tmp_path: Path, label: str
) -> None:
    root = lab.small_root(debian_root_tar, tmp_path)
    (root / "etc/fstab").write_text(
        f"UUID={bases.ROOT_UUID} / ext4 defaults 0 1\nUUID={bases.BOOT_UUID} /boot ext4 defaults 0 2\n"
    )
    (tmp_path / "boot").mkdir()
    (tmp_path / "boot/vmlinuz-1").touch()
    boot = bases.file_system(
        tmp_path / "boot.ext4", tmp_path / "boot", uuid=bases.BOOT_UUID, size=8 * bases.MIB
    )
    system = bases.file_system(tmp_path / "root.ext4", root, size=32 * bases.MIB)
    kinds = (bases.BOOT, bases.ROOT) if label == "gpt" else ("83", "83")
    disk = bases.disk(tmp_path / "disk.raw", (kinds[0], boot), (kinds[1], system), label=label)
    execute(disk, lab.shell("test -e /boot/vmlinuz-1; echo kept > /boot/kept"))
    assert tree_of(disk).read_text("/boot/kept") == "kept\n"
    for offset in bases.offsets(disk):
        lab.clean(disk, offset)


@pytest.mark.parametrize("path", ["/nowhere", "/proc", "/run/tpu-image"])
def test_a_volume_without_a_folder_of_the_image_is_left_out(
    debian_root_tar: Path, tmp_path: Path, path: str
) -> None:
    root = lab.small_root(debian_root_tar, tmp_path)
    (root / "etc/fstab").write_text(f"UUID={bases.BOOT_UUID} {path} ext4 defaults,nofail 0 2\n")
    (tmp_path / "data").mkdir()
    data = bases.file_system(
        tmp_path / "data.ext4", tmp_path / "data", uuid=bases.BOOT_UUID, size=8 * bases.MIB
    )
    system = bases.file_system(tmp_path / "root.ext4", root, size=32 * bases.MIB)
    disk = bases.disk(tmp_path / "disk.raw", (bases.ROOT, system), (bases.BOOT, data))
    heard = execute(disk, lab.shell("test -e /proc/self && echo done"))
    told = f"{path} is no folder of the image: what /etc/fstab mounts there is left out"
    assert heard.lines == [told, "done"]


@pytest.mark.parametrize("target", ["", "../run/systemd/resolve/stub-resolv.conf", "/nowhere"])
def test_names_are_resolved_and_resolv_conf_is_given_back(system: Path, tmp_path: Path, target: str) -> None:
    disk = tmp_path / "disk.raw"
    run("cp", "--sparse=always", system, disk)
    if target:
        device = f"{disk}?offset={lab.START}"
        run("debugfs", "-w", "-R", "rm /etc/resolv.conf", device)
        run("debugfs", "-w", "-R", f"symlink /etc/resolv.conf {target}", device)
    heard = execute(disk, lab.shell("cat /etc/resolv.conf"))
    assert heard.lines == [line for line in Path("/etc/resolv.conf").read_text().splitlines() if line]
    tree = tree_of(disk)
    entry = tree.lstat("/etc/resolv.conf")
    assert entry is not None
    assert entry.target == target
    assert target or tree.read_bytes("/etc/resolv.conf") == RESOLV_CONF
    assert tree.names("/etc") == ["os-release", "resolv.conf"]


def test_no_service_can_be_started(disk: Path) -> None:
    execute(
        disk, lab.shell("start-stop-daemon --start; ! policy-rc.d ssh start; ! test -e /run/systemd/system")
    )
    tree = tree_of(disk)
    assert not tree.exists("/started")
    assert tree.names("/usr/sbin") == ["start-stop-daemon"]
    assert "started" in tree.read_text("/usr/sbin/start-stop-daemon")


def test_what_a_package_puts_in_the_place_of_a_stand_in_stays(disk: Path) -> None:
    execute(disk, lab.shell("echo new > /usr/sbin/start-stop-daemon"))
    tree = tree_of(disk)
    assert tree.read_text("/usr/sbin/start-stop-daemon") == "new\n"
    assert tree.names("/usr/sbin") == ["start-stop-daemon"]


APART = {
    "the root is the image's": "test -e /usr/lib/systemd/systemd && ! test -e /home && ! test -e /etc/passwd",
    "no way out through the first process": "cd /proc/1 && ! cat root/etc/passwd",
    "no disk but its own": 'for d in /dev/*; do test ! -b "$d" || case "$d" in /dev/loop*) ;; *) exit 1; esac; done',
    "no other processes": 'for p in /proc/[0-9]*; do case "${p#/proc/}" in 1|$$) ;; *) exit 1; esac; done',
    "no settings of this kernel": "! echo 5 > /proc/sys/kernel/printk_ratelimit",
    "nothing of /proc to write to but processes": (
        'for p in /proc/[!0-9]*; do if ! test -L "$p" && test -w "$p"; then echo "$p"; exit 1; fi; done'
    ),
    "what it started ends for good": (
        "(sleep 0.1 & echo $! > /tmp/orphan); sleep 1; ! test -e /proc/$(cat /tmp/orphan)"
    ),
    "nothing in /sys": "! touch /sys/kernel/x",
    "an environment of its own": 'test -z "$MINE" && test "$HOME" = /root && test "$DEBIAN_FRONTEND" = noninteractive',
    "no input": "! read line",
    "no memory of scripts": "! test -e /usr/run && test -x /run/tpu-image/script",
    "devices": "echo x > /dev/null; test -c /dev/urandom; test -d /dev/pts; test -L /dev/stdin",
}


@pytest.mark.parametrize("text", APART.values(), ids=APART.keys())
def test_what_runs_is_apart_from_this_machine(disk: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("MINE", "secret")
    execute(disk, lab.shell(text))


def test_what_runs_has_the_capabilities_of_a_container_less_devices(disk: Path) -> None:
    script = 'while read name value; do if test "$name" = CapEff:; then echo "$value"; fi; done < /proc/self/status'
    assert execute(disk, lab.shell(script)).lines == [
        f"{sum(1 << number for number in KEPT_CAPABILITIES):016x}"
    ]
    assert not {21, 27} & KEPT_CAPABILITIES, "sys_admin would mount, mknod would reach any disk"
    assert not {10, 13} & KEPT_CAPABILITIES, "the network is this machine's: its traffic, its ports"


def test_capabilities_that_the_build_was_started_with_are_not_inherited(disk: Path) -> None:
    program = (
        f"import sys; sys.path[:] = {sys.path!r}; import customise_lab as lab;"
        "from tpu_image.customise.namespace import NamespaceExecutor as Executor;"
        "script = 'while read name value; do case $name in Cap*) echo $value;; esac; done < /proc/self/status';"
        "Executor().execute(open(sys.argv[1], 'r+b'), lab.shell(script), heard := lab.Heard()); print(*heard.lines)"
    )
    command = ("setpriv", "--inh-caps=+sys_admin,+sys_rawio", sys.executable, "-B", "-c", program, disk)
    inherited, *others = run(*command).split()
    kept = f"{sum(1 << number for number in KEPT_CAPABILITIES):016x}"
    assert (int(inherited, 16), others[:3]) == (0, [kept, kept, kept])


def test_an_error_of_the_file_system_is_no_panic_of_this_machine(disk: Path) -> None:
    run("tune2fs", "-e", "panic", f"{disk}?offset={lab.START}")
    script = (
        'while read device path kind options rest; do if test "$path" = /; then echo "$options"; fi; done'
    )
    (options,) = execute(disk, lab.shell(f"{script} < /proc/mounts")).lines
    assert "errors=remount-ro" in options.split(",")


def test_what_is_held_in_memory_leaves_some_to_this_machine(disk: Path) -> None:
    lines = execute(disk, lab.shell("cat /proc/mounts")).lines
    held = [line for line in lines if line.split()[2] == "tmpfs"]
    sizes = [int(size) for line in held for size in re.findall(r"\bsize=(\d+)k", line)]
    assert len(sizes) == len(held) >= 4
    assert sum(sizes) * 1024 < 0.8 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_a_block_device_that_does_not_free_itself_any_more_is_freed(tmp_path: Path) -> None:
    with (tmp_path / "disk.raw").open("w+b") as file:
        file.truncate(1 << 20)
        device, path = loop_devices.attach(file.fileno())
        fcntl.ioctl(device, LOOP_SET_STATUS64, bytes(SIZE_OF_STATUS))  # flags of zero
        os.close(device)
        assert lab.loop_devices(tmp_path)
        another = os.stat_result((0, os.fstat(file.fileno()).st_ino, *[0] * 8))
        assert not loop_devices.release(path, another)
        assert loop_devices.release(path, os.fstat(file.fileno()))
    assert not lab.loop_devices(tmp_path)


def test_proxies_of_the_build_reach_the_image(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://192.0.2.7:3128")
    assert execute(disk, lab.shell('echo "$http_proxy"')).lines == ["http://192.0.2.7:3128"]


def test_folders_are_given_to_read_alone(disk: Path, tmp_path: Path) -> None:
    (tmp_path / "wheels").mkdir()
    (tmp_path / "wheels/a.whl").write_text("wheel\n")
    session = Session(
        (Step("script", ("/run/tpu-image/script",)),),
        {"script": b"#!/bin/sh\ncat /run/tpu-image/given/a.whl; ! touch /run/tpu-image/given/b"},
        {"given": tmp_path / "wheels"},
    )
    assert execute(disk, session).lines[0] == "wheel"
    assert os.listdir(tmp_path / "wheels") == ["a.whl"]


FAILING = {
    "exit 3": ("echo before; exit 3", "script: ended with status 3", ("before",)),
    "a command": ("false; echo not reached", "script: ended with status 1", ()),
    "a signal": ("kill -KILL $$", "script: was ended by SIGKILL", ()),
}


@pytest.mark.parametrize(("text", "message", "output"), FAILING.values(), ids=FAILING.keys())
def test_a_failure_names_the_step_and_shows_the_last_lines(
    disk: Path, text: str, message: str, output: tuple[str, ...]
) -> None:
    with pytest.raises(CustomisationError) as caught:
        execute(disk, lab.shell(text))
    assert (caught.value.message, caught.value.output) == (message, output)


def test_a_program_that_is_missing_is_named(disk: Path) -> None:
    with pytest.raises(CustomisationError, match="apt: ended with status 127") as caught:
        execute(disk, Session((Step("apt", ("/usr/bin/apt-get",)),)))
    assert caught.value.output == ("/usr/bin/apt-get: No such file or directory",)


def test_what_takes_too_long_is_ended(disk: Path) -> None:
    session = Session((Step("wait", ("/usr/bin/sleep", "987601")),), time_limit=1)
    with pytest.raises(CustomisationError, match="wait: did not end within 1 second"):
        execute(disk, session)
    assert not lab.processes("987601")


def test_somebody_watching_is_told_that_it_goes_on(disk: Path) -> None:
    assert execute(disk, lab.shell("sleep 2.5")).waited


def test_a_daemon_does_not_outlive_its_script(disk: Path) -> None:
    execute(disk, lab.shell("sleep 987602 &"))
    assert not lab.processes("987602")
    lab.clean(disk)


def test_lines_that_return_or_hold_anything_are_safe_to_print(disk: Path) -> None:
    lines = execute(disk, lab.shell(r"printf '10%%\r50%%\r100%%\n\033[31mred\n\377\n'; printf end")).lines
    assert lines == ["100%", "\\x1b[31mred", "\ufffd", "end"]


def test_a_root_whose_folders_are_links_is_refused(system: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk.raw"
    run("cp", "--sparse=always", system, disk)
    device = f"{disk}?offset={lab.START}"
    run("debugfs", "-w", "-R", "rmdir /run", device)
    run("debugfs", "-w", "-R", f"symlink /run {tmp_path}", device)
    with pytest.raises(CustomisationError, match="/run is no folder in the image"):
        execute(disk, lab.shell("true"))
    assert os.listdir(tmp_path) == ["disk.raw"]


def test_an_ordinary_user_is_told_what_is_needed(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CustomisationError, match="run it as root"):
        execute(disk, lab.shell("true"))


def test_a_machine_that_forbids_it_is_told_so(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(namespace, "START", "raise SystemExit('unshare failed: Operation not permitted')")
    with pytest.raises(CustomisationError, match=r"gives no namespaces \(unshare failed: Operation not perm"):
        execute(disk, lab.shell("true"))


BUILD = """
import sys
from pathlib import Path
from tpu_image.customise.customisation import Customisation, Script
from tpu_image.customise.execution import executed
from tpu_image.customise.namespace import NamespaceExecutor
from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.image import open_image

class Loud:
    def step(self, name): print("step", name, flush=True)
    def line(self, text): print("line", text, flush=True)
    def waiting(self, name, seconds): pass

script = b"echo working; sleep 987603 & sleep 987603; echo never"
with open_image(sys.argv[1]) as base:
    wanted = Customisation(scripts=(Script("long", script),))
    print("start", flush=True)
    with executed(EditedDisk(base), wanted, NamespaceExecutor, Loud(), folder=Path(sys.argv[2])):
        print("done", flush=True)
"""

STAGES = [
    ("start", 0.0),
    *(("start", delay) for delay in (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)),
    ("step run long", 0.0),
    ("line working", 0.0),
    ("line working", 0.3),
]


@pytest.mark.parametrize(("word", "delay"), STAGES)
def test_a_kill_at_any_stage_leaves_nothing(system: Path, tmp_path: Path, word: str, delay: float) -> None:
    digest = hashlib.sha256(system.read_bytes()).digest()
    mounted = lab.mounts(tmp_path)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", BUILD, str(system), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as build:
        assert build.stdout is not None
        for line in build.stdout:
            if line.strip() == word:
                break
        time.sleep(delay)
        build.send_signal(signal.SIGKILL)
    assert build.returncode == -signal.SIGKILL
    assert lab.eventually(lambda: not lab.processes("987603")), "a program is left"
    assert lab.eventually(lambda: not lab.processes(f"build-{build.pid}")), "a namespace is left"
    assert lab.eventually(lambda: not lab.loop_devices(tmp_path)), "a block device is left"
    assert lab.mounts(tmp_path) == mounted
    assert os.listdir(tmp_path) == []
    assert hashlib.sha256(system.read_bytes()).digest() == digest


def test_an_image_is_let_go_of_when_all_is_done(disk: Path, tmp_path: Path) -> None:
    with disk.open("r+b") as file:
        NamespaceExecutor().execute(file, lab.shell("true"), lab.Heard())
    assert not lab.loop_devices(tmp_path)
    assert not list(Path("/sys/block").glob("loop*/loop*p*"))
