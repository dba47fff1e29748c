"""The first process of the namespaces in which an image's programs run.

It mounts the image, makes it the only root that there is, and runs the steps with the capabilities that containers
commonly have. Its standard input is held by the build: at its end everything here dies with it, and with the last
process the mounts and block devices go too, so nothing is left behind however the build ends.

Started by :mod:`tpu_image.customise.namespace`; speaks JSON lines. Imports nothing once the image is the root.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import stat
import sys
from collections.abc import Iterator
from typing import Any

from tpu_image.customise.loop_devices import LoopError, add_partition, attach
from tpu_image.customise.stand_ins import StandIn, put, take_away
from tpu_image.customise.system_calls import (
    MS_BIND,
    MS_MOVE,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    MS_REMOUNT,
    change_root,
    keep_capabilities,
    mount,
    set_host_name,
    unmount,
)

PLACE = "/mnt"
"""Where the image is mounted before it becomes the root; a folder that every system has (FHS 3.0, section 3.12)."""

KEPT_CAPABILITIES = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 18, 29, 31})
"""By number (capabilities(7)): chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, sys_chroot,
audit_write, setfcap. None of them reaches devices, mounts, or processes outside. The network is this machine's, so
net_raw, with which its traffic is read, and net_bind_service are not among them, as they are in containers."""

DEVICES = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "tty": (5, 0),
}
"""Numbers of the devices that programs expect (Linux ``Documentation/admin-guide/devices.txt``)."""

DEVICE_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
    "ptmx": "pts/ptmx",
}

IN_MEMORY = ("dev", "proc", "run", "sys", "tmp")
"""What is in the root and holds nothing of the image: other file systems are mounted there."""

OTHER_KERNEL = "check the file system with e2fsck, or build on a newer kernel"

MOUNT_OPTIONS = "errors=remount-ro"
"""For ext4 and vfat: what a superblock says of errors may be that the kernel is to panic (ext4(5), "errors")."""


class SessionError(Exception):
    """The session cannot go on; the message is one line for the user."""


class Confinement:
    """One session: what was asked for, and where to tell how it goes on."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request = request
        self.mounted: list[str] = []
        self._child_ended = _told_of_children()

    def tell(self, **event: object) -> None:
        """Tell the build something."""
        os.write(self.request["events"], json.dumps(event).encode() + b"\n")

    def run(self) -> None:
        """Do everything, from the block devices to the last unmounting."""
        try:
            # Opened here: a descriptor from another mount namespace cannot be mounted, and /mnt is covered soon.
            folders = {n: os.open(p, os.O_PATH | os.O_DIRECTORY) for n, p in self.request["folders"].items()}
            device, path = attach(self.request["disk"])
            self.tell(device=path)
            self._make_devices(device, path)
            self._mount_root()
            os.close(device)  # the mount keeps it
            self._give(folders)
            change_root(PLACE)
            # From here on the image could answer an import with code of its own.
            sys.path.clear()
            sys.meta_path.clear()
            self._mount_system()
            self._run_steps()
            self._leave()
        except (SessionError, LoopError) as error:
            self.tell(error=str(error))
        except OSError as error:
            self.tell(error=f"{error.filename}: {error.strerror}")
        else:
            self.tell(done=True)

    def _make_devices(self, device: int, path: str) -> None:
        """Make a /dev that has this disk and no other, in place of this machine's.

        Volumes have the names that udev gives them: update-grub writes the root's UUID only where it finds it there.
        """
        mount("tmpfs", "/dev", "tmpfs", MS_NOSUID, "mode=0755,size=1m")
        for name, (major, minor) in DEVICES.items():
            _make_device(f"/dev/{name}", stat.S_IFCHR | 0o666, os.makedev(major, minor))
        for name, target in DEVICE_LINKS.items():
            os.symlink(target, f"/dev/{name}")
        for name in ("pts", "shm"):
            os.mkdir(f"/dev/{name}")
        _make_device(path, stat.S_IFBLK | 0o660, os.fstat(device).st_rdev)
        for volume in self.request["volumes"]:
            volume["device"] = path
            if volume["number"]:
                add_partition(device, volume["number"], volume["start"], volume["size"])
                volume["device"] = f"{path}p{volume['number']}"
                _make_device(volume["device"], stat.S_IFBLK | 0o660, _number(volume["device"]))
            for link in volume["links"]:
                os.makedirs(os.path.dirname(link), exist_ok=True)
                with contextlib.suppress(FileExistsError):
                    os.symlink(volume["device"], link)

    def _mount_root(self) -> None:
        root = self.request["volumes"][0]
        try:
            mount(root["device"], PLACE, root["kind"], MS_NODEV, f"nobarrier,{MOUNT_OPTIONS}")
        except OSError as error:
            raise SessionError(
                f"this kernel does not mount the root ({error.strerror}); {OTHER_KERNEL}"
            ) from None
        for name in IN_MEMORY:
            if not stat.S_ISDIR(_mode(f"{PLACE}/{name}")):
                raise SessionError(f"/{name} is no folder in the image, so nothing can be executed in it")
        mount("/dev", f"{PLACE}/dev", "", MS_MOVE)

    def _give(self, folders: dict[str, int]) -> None:
        """Lay the session's files and folders under /run, from this machine's side.

        All that is held in memory has a size, so that together it leaves some to this machine.
        """
        given = PLACE + self.request["given"]
        mount("tmpfs", f"{PLACE}/run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755,size=10%")
        os.mkdir(f"{PLACE}/run/lock")
        os.chmod(f"{PLACE}/run/lock", 0o1777)  # noqa: S103 - as systemd makes it
        os.mkdir(given, 0o755)
        for name, content in self.request["files"].items():
            os.makedirs(os.path.dirname(f"{given}/{name}"), mode=0o755, exist_ok=True)
            descriptor = os.open(f"{given}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o700)
            with open(descriptor, "wb") as file:
                file.write(content.encode("utf-8", "surrogateescape"))
        for name, folder in folders.items():
            os.mkdir(f"{given}/{name}")
            mount(f"/proc/self/fd/{folder}", f"{given}/{name}", "", MS_BIND)
            flags = MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV
            mount("", f"{given}/{name}", "", flags)
            os.close(folder)

    def _mount_system(self) -> None:
        quiet = MS_NOSUID | MS_NODEV | MS_NOEXEC
        mount("proc", "/proc", "proc", quiet)
        for path in _kernels_own():
            mount(path, path, "", MS_BIND)
            mount("", path, "", MS_BIND | MS_REMOUNT | MS_RDONLY | quiet)
        mount("sysfs", "/sys", "sysfs", quiet | MS_RDONLY)
        mount("tmpfs", "/tmp", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=50%")  # noqa: S108 - the image's own
        mount(
            "devpts", "/dev/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5"
        )
        mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=10%")  # noqa: S108
        set_host_name("localhost")
        for volume in self.request["volumes"][1:]:
            self._mount_volume(volume["device"], volume["path"], volume["kind"])

    def _mount_volume(self, device: str, path: str, kind: str) -> None:
        if path.split("/")[1] in IN_MEMORY or not os.path.isdir(path):
            self.tell(line=f"{path} is no folder of the image: what /etc/fstab mounts there is left out")
            return
        try:
            mount(device, path, kind, MS_NODEV, MOUNT_OPTIONS)
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise SessionError(
                    f"this kernel does not mount {path} ({error.strerror}); {OTHER_KERNEL}"
                ) from None
            mount("tmpfs", path, "tmpfs", MS_NODEV | MS_RDONLY)
            self.tell(line=f"this kernel has no {kind}: {path} shows empty and cannot be changed")
        self.mounted.append(path)

    def _run_steps(self) -> None:
        stand_ins = [
            StandIn(p, c.encode("utf-8", "surrogateescape"), m) for p, c, m in self.request["stand_ins"]
        ]
        placed = [stand_in for stand_in in stand_ins if put(stand_in)]
        for number, arguments in enumerate(self.request["steps"]):
            self.tell(step=number)
            status = self._run(arguments)
            _kill_all()
            if status:
                self.tell(step=number, status=status)
                raise SessionError("")
        for stand_in in placed:
            take_away(stand_in)

    def _run(self, arguments: list[str]) -> int:
        process = os.fork()
        if process == 0:
            self._become(arguments)
        return _wait(process, self._child_ended)

    def _become(self, arguments: list[str]) -> None:
        """Turn this new process into the program."""
        try:
            os.setsid()
            os.umask(0o022)
            null = os.open("/dev/null", os.O_RDONLY)
            for target, source in enumerate((null, self.request["output"], self.request["output"])):
                os.dup2(source, target)
            os.closerange(3, 65536)
            for number in (
                signal.SIGPIPE,
                signal.SIGXFSZ,
            ):  # Python ignores them, and programs would inherit that
                signal.signal(number, signal.SIG_DFL)
            keep_capabilities(KEPT_CAPABILITIES, self.request["last_capability"])
            os.execve(arguments[0], arguments, self.request["environment"])  # noqa: S606 - no shell
        except OSError as error:
            os.write(2, f"{arguments[0]}: {error.strerror}\n".encode())
        finally:
            os._exit(127)

    def _leave(self) -> None:
        """Have everything on the disk, and its file systems clean, before the last process ends."""
        for path in ("/tmp", *reversed(self.mounted)):  # noqa: S108
            unmount(path)
        mount("", "/", "", MS_REMOUNT | MS_RDONLY)  # which writes everything that is not written yet


def _kernels_own() -> list[str]:
    """What of /proc belongs to no process: root may write to much of it without any capability.

    Settings, interrupts, and with ``/proc/scsi/scsi`` this machine's disks, which can be taken from it there.
    """
    paths = (f"/proc/{name}" for name in os.listdir("/proc") if not name.isdigit())
    return [path for path in paths if not stat.S_ISLNK(_mode(path))]


def _number(path: str) -> int:
    """The number of a block device that the kernel has, wherever its node is."""
    with open(f"/sys/class/block/{os.path.basename(path)}/dev") as file:
        major, minor = file.read().split(":")
    return os.makedev(int(major), int(minor))


def _mode(path: str) -> int:
    try:
        return os.lstat(path).st_mode
    except FileNotFoundError:
        return 0


def _make_device(path: str, mode: int, device: int) -> None:
    os.mknod(path, mode, device)
    os.chmod(path, stat.S_IMODE(mode))


def _told_of_children() -> int:
    """Give a descriptor that has something to read after a child ended (:func:`signal.set_wakeup_fd`)."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)  # which is ignored otherwise, and then writes nothing
    return reading


def _wait(process: int, child_ended: int) -> int:
    """Wait for a program, and take away every process that lost its parent: some wait until one is gone.

    Args:
        process: the program's number.
        child_ended: descriptor that has bytes to read after a child ended.

    Returns:
        What it ended with, as shells say it: 128 and more for a signal.
    """
    while True:
        for reaped, status in _reaped():
            if reaped == process:
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code
        ready, _, _ = select.select([0, child_ended], [], [])
        if 0 in ready:  # the build is gone
            os._exit(1)
        os.read(child_ended, 4096)


def _reaped() -> Iterator[tuple[int, int]]:
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            yield found


def _kill_all() -> None:
    """End whatever a program left running; the first process of a namespace is spared (kill(2))."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def _request() -> dict[str, Any]:
    text = bytearray()
    while not text.endswith(b"\n"):
        part = os.read(0, 65536)
        if not part:
            os._exit(1)
        text += part
    request = json.loads(text)
    assert isinstance(request, dict)  # noqa: S101 - the build wrote it
    return request


def main() -> None:
    """Run the session that standard input describes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Confinement(_request()).run()
