"""Asks the installed udev what rules make of a device that is not there (umockdev)."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tpu_image.formats.udev_model import Device

PACKAGES = {"udevadm": "udev", "umockdev-run": "umockdev", "unshare": "util-linux"}

# Everything that `udevadm test` might touch is put out of its reach first.
INSIDE = """
set -e
mount --bind "$1/udev" /etc/udev
mount -t tmpfs run /run
mkdir -p /run/udev
mount -t tmpfs dev /dev
mknod /dev/null c 1 3
mknod /dev/urandom c 1 9
mkdir -p /dev/char /dev/pts
mount -t devpts -o newinstance,ptmxmode=0666 pts /dev/pts
ln -s pts/ptmx /dev/ptmx
sh "$1/marks"
exec umockdev-run -d "$1/device" -- udevadm test --action="$2" "$3"
"""


@dataclass(frozen=True)
class Answer:
    """What udev says it would do."""

    run: list[str]
    tags: set[str]
    mode: str
    log: str


def require(*programs: str) -> None:
    """Fail where a program is missing, naming the Debian package that has it."""
    for name in programs:
        if shutil.which(name) is None:
            pytest.fail(f"{name} is not installed: apt-get install {PACKAGES.get(name, name)}")


def description(device: Device) -> str:
    """The device and its parents as umockdev reads them."""
    paragraphs = []
    for item in device.lineage():
        if not item.subsystem:
            continue
        lines = [f"P: {item.devpath}"]
        lines += [f"N: {item.node.removeprefix('/dev/')}"] if item.node else []
        lines += [f"E: SUBSYSTEM={item.subsystem}"]
        lines += [f"E: DEVNAME={item.node}"] if item.node else []
        lines += [f"E: {name}={value}" for name, value in item.properties.items()]
        lines += [f"A: {name}={value}\\n" for name, value in item.attributes.items()]
        lines += [f"L: driver=../../../bus/pci/drivers/{item.driver}"] if item.driver else []
        paragraphs.append("\n".join(lines) + "\n")
    return "\n".join(reversed(paragraphs))


def ask(
    folder: Path,
    files: Mapping[str, str],
    device: Device,
    action: str = "add",
    existing: tuple[str, ...] = (),
) -> Answer:
    """Ask udev about an event, with these files in /etc/udev/rules.d beside the distribution's own rules.

    ``existing`` are paths that TEST is to find.
    """
    require("udevadm", "umockdev-run", "unshare")
    rules = folder / "udev" / "rules.d"
    shutil.rmtree(folder / "udev", ignore_errors=True)
    rules.mkdir(parents=True)
    for name, text in files.items():
        (rules / name).write_text(text, "utf-8", "surrogateescape", newline="")
    (folder / "device").write_text(description(device))
    marks = [f"mkdir -p '{Path(path).parent}'; : > '{path}'\n" for path in existing]
    (folder / "marks").write_text("".join(marks))
    command = ["unshare", "-m", "sh", "-c", INSIDE, "sh", str(folder), action, f"/sys{device.devpath}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    log = done.stdout + done.stderr
    assert done.returncode == 0, log
    assert f"DEVPATH={device.devpath}" in log, log
    # systemd 256 and newer end with a summary of their own.
    modes = re.findall(r"(?::\d+ MODE|^Device node permission:\n ) (0\d+)$", log, re.MULTILINE)
    tags = re.search(r"^ *CURRENT_TAGS=:(.*):$", log, re.MULTILINE)
    return Answer(
        run=re.findall(r"^(?:run: '|  RUN\{\w+\} : )(.*?)'?$", log, re.MULTILINE),
        tags=set(tags[1].split(":")) if tags else set(),
        mode=modes[-1] if modes else "",
        log=log,
    )
