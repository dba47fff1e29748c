"""Disks to customise: a small system that can run a shell, and what is left behind of a run on this machine."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import build_bases as bases
from disk_tools import run
from tpu_image.customise.session import Session, Step

PROGRAMS = ("dash", "sh", "sleep", "cat", "true", "false", "chmod", "touch", "env")
LIBRARY = "./usr/lib/x86_64-linux-gnu"
START = 2048 * 512


def small_root(tar: Path, folder: Path) -> Path:
    """A folder with a shell and little else, out of a Debian root."""
    root = folder / "root"
    for name in ("dev", "etc", "proc", "run", "sys", "tmp", "usr/sbin", "usr/lib/systemd", "boot"):
        (root / name).mkdir(parents=True)
    names = [f"./usr/bin/{name}" for name in PROGRAMS]
    libraries = [f"{LIBRARY}/{name}" for name in ("libc.so.6", "ld-linux-x86-64.so.2")]
    links = ["./bin", "./lib", "./lib64", "./sbin", "./usr/lib64", "./usr/lib/os-release", "./etc/os-release"]
    run("tar", "-xf", tar, "-C", root, *names, *libraries, *links)
    (root / "usr/lib/systemd/systemd").touch()
    (root / "usr/sbin/start-stop-daemon").write_text("#!/bin/sh\necho started > /started\n")
    (root / "usr/sbin/start-stop-daemon").chmod(0o755)
    (root / "etc/resolv.conf").write_bytes(b"# the image's own\nnameserver 192.0.2.1\n\xff")
    return root


def debian_sources() -> bytes:
    """The stanzas of this machine's own package sources that are Debian's."""
    found = []
    for path in sorted(Path("/etc/apt/sources.list.d").glob("*.sources")):
        stanzas = path.read_text().split("\n\n")
        found += [stanza.strip() for stanza in stanzas if "debian-archive-keyring" in stanza]
    if not found:
        pytest.fail("no deb822 source of this machine is signed with debian-archive-keyring")
    return "\n\n".join(found).encode() + b"\n"


def small_system(tar: Path, folder: Path) -> Path:
    """A raw disk with a GPT whose root is :func:`small_root`."""
    system = bases.file_system(folder / "root.ext4", small_root(tar, folder), size=32 * bases.MIB)
    return bases.disk(folder / "system.raw", (bases.ROOT, system))


def shell(text: str, *, name: str = "script") -> Session:
    """A session that runs a script."""
    return Session((Step(name, ("/run/tpu-image/script",)),), {"script": b"#!/bin/sh -e\n" + text.encode()})


class Heard:
    """A listener that keeps what it is told."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.lines: list[str] = []
        self.waited = 0

    def step(self, name: str) -> None:
        self.steps.append(name)

    def line(self, text: str) -> None:
        self.lines.append(text)

    def waiting(self, name: str, seconds: float) -> None:
        self.waited += 1


def processes(marker: str) -> list[int]:
    """Processes that have a word among their arguments."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                arguments = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if marker.encode() in arguments:
                found.append(int(entry))
    return found


def loop_devices(folder: Path) -> list[str]:
    """Files below a folder, named or not, that back a block device."""
    files = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            files.append(backing.read_text())
        except OSError:
            continue
    return [name for name in files if str(folder) in name]


def mounts(folder: Path) -> list[str]:
    """What is mounted where images are, or below a folder, as this process sees it."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line for line in lines if line.split()[1].startswith(("/mnt", str(folder)))]


def eventually(condition: Callable[[], bool], seconds: float = 30) -> bool:
    """Whether something comes true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def clean(disk: Path, offset: int = START) -> None:
    """Have e2fsck find nothing to complain of."""
    result = subprocess.run(
        ["e2fsck", "-fn", f"{disk}?offset={offset}"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
