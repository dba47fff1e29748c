"""Judge a boot from inside, as root, and report it as lines of JSON through a virtio-serial port.

usage: probe.py PORT

Each line is an object with a ``kind``; the last is ``end``. A measurement that fails is a line of kind ``fault``, and
the others go on. What to do beside measuring stands in ``settings.json``, written by the host: the checker's options,
commands of the user, how long to wait. A user without privileges is anyone but root: ``nobody``, whom every system has.
"""

from __future__ import annotations

import glob
import json
import os
import re
import shlex
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Dict

FOLDER = "/etc/tpu-image-lab"
BOOTS_DONE = FOLDER + "/boots-done"
USER = "nobody"
DEVICES = "/sys/bus/pci/devices"
OUTPUT_LIMIT = 256 * 1024
"""Bytes of one command's output that are reported: its end."""
KERNEL_LINES = re.compile(
    r"cannot parse|ignored|[Mm]alformed|nknown kernel command|vfio|iommu|IOMMU|DMAR|hugepage"
)
LINES_LIMIT = 400
ANALYSIS_SECONDS = 300.0
"""How long systemd-analyze may take: it asks for every unit by itself."""
BLAME_LIMIT = 40
Settings = Dict[str, Any]
ATTRIBUTES = ("vendor", "device", "subsystem_vendor", "subsystem_device")


class Port:
    """Where the report goes, line by line."""

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDWR)

    def send(self, kind: str, **values: object) -> None:
        """Write one line."""
        data = json.dumps(dict(values, kind=kind)).encode() + b"\n"
        while data:
            data = data[os.write(self.descriptor, data) :]

    def relay(self, done: subprocess.CompletedProcess[bytes], what: str) -> None:
        """Write the lines that another program of ours made, and its failure."""
        for line in done.stdout.splitlines():
            self.send(**json.loads(line.decode()))
        if done.returncode:
            self.send("fault", text=what + ": " + done.stderr.decode("utf-8", "replace")[-500:])


def run(command: list[str], timeout: float = 120) -> subprocess.CompletedProcess[bytes]:
    """Run a program and keep what it prints."""
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        timeout=timeout,
        check=False,
    )


def as_user(command: list[str], timeout: float = 300) -> subprocess.CompletedProcess[bytes]:
    """Run a program in a login session of a user without privileges, with the limits that PAM gives it."""
    words = " ".join(map(shlex.quote, command))
    return run(["su", "-s", "/bin/sh", "-c", "cd / && exec " + words, USER], timeout)


def own(program: str, *arguments: str) -> list[str]:
    """Give the command of a program of ours."""
    return [sys.executable, "-I", FOLDER + "/" + program, *arguments]


def text_of(path: str) -> str:
    """Read a small file; empty where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536).strip()
    except OSError:
        return ""


def link_name(path: str) -> str:
    """Give the last part of where a link leads; empty where there is none."""
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return ""


def settle(port: Port, settings: Settings) -> None:
    """Wait until the boot has no job left, at most as long as the settings say."""
    began = time.monotonic()
    try:
        state = (
            run(["systemctl", "is-system-running", "--wait"], settings["settle_seconds"])
            .stdout.decode()
            .strip()
        )
    except subprocess.TimeoutExpired:
        state = "timeout"
    port.send(
        "settled",
        settled=state not in ("timeout", "", "starting"),
        state=state,
        waited=time.monotonic() - began,
    )


def identify(port: Port, _settings: Settings) -> None:
    """Say what runs here."""
    release = dict(line.partition("=")[::2] for line in text_of("/etc/os-release").splitlines())
    system = release.get("PRETTY_NAME", "").strip("\"'")
    line = text_of("/proc/cmdline")
    port.send("system", kernel=os.uname().release, system=system, command_line=line, user=USER)


def addresses(settings: Settings) -> list[str]:
    """Find the PCI functions that have the ids of a TPU."""
    found = []
    for address in sorted(os.listdir(DEVICES)):
        ids = [int(text_of(f"{DEVICES}/{address}/{name}") or "0", 16) for name in ("vendor", "device")]
        if ids in settings["ids"]:
            found.append(address)
    return found


def wait_for_late_device(port: Port, settings: Settings) -> None:
    """Have the host plug a TPU in, where it was asked to, and wait until it shows and its events are handled."""
    if not settings["late_device"]:
        return
    before = addresses(settings)
    port.send("want", what="late-device")
    end = time.monotonic() + 60
    while addresses(settings) == before and time.monotonic() < end:
        time.sleep(0.5)
    time.sleep(2)
    run(["udevadm", "settle", "--timeout=60"])


def devices(port: Port, settings: Settings) -> None:
    """Describe every TPU function, then use it as a user."""
    found = addresses(settings)
    for address in found:
        path = f"{DEVICES}/{address}"
        ids = {name: int(text_of(path + "/" + name) or "0", 16) for name in ATTRIBUTES}
        group = link_name(path + "/iommu_group")
        port.send(
            "device",
            address=address,
            driver=link_name(path + "/driver"),
            group=group,
            nodes=list(nodes(path, group)),
            **ids,
        )
    if found:
        port.relay(as_user(own("vfio.py", *found)), "using the devices")


def nodes(path: str, group: str) -> Iterator[Dict[str, Any]]:
    """Describe the device nodes of a function."""
    found = ["/dev/vfio/" + group, "/dev/vfio/noiommu-" + group] if group else []
    found += [
        "/dev/vfio/devices/" + os.path.basename(name) for name in sorted(glob.glob(path + "/vfio-dev/*"))
    ]
    for name in found:
        if os.path.exists(name):
            status = os.stat(name)
            yield {"path": name, "mode": status.st_mode & 0o7777, "uid": status.st_uid, "gid": status.st_gid}


def tasks(port: Port, _settings: Settings) -> None:
    """Tell how our units fared."""
    names = ["Id", "ActiveState", "Result", "StatusText", "LoadState", "CPUUsageNSec"]
    times = [
        "InactiveExitTimestampMonotonic",
        "ExecMainExitTimestampMonotonic",
        "ActiveEnterTimestampMonotonic",
    ]
    for unit in properties(["tpu-image-*"], names + times):
        if unit.get("LoadState") == "loaded":
            used = unit.get("CPUUsageNSec", "")
            port.send(
                "task",
                unit=unit["Id"],
                state=unit.get("ActiveState", ""),
                result=unit.get("Result", ""),
                status=unit.get("StatusText", "") or last_line(unit["Id"]),
                started=seconds(unit, times[0]),
                finished=seconds(unit, times[1]) or seconds(unit, times[2]),
                cpu=int(used) / 1e9 if used.isdecimal() and int(used) < 1 << 62 else 0.0,
            )


def bindings(port: Port, settings: Settings) -> None:
    """Tell when each function was bound, and what that took."""
    port.relay(run(own("binding.py", settings["bind_script"])), "binding anew")


def last_line(unit: str) -> str:
    """Give the last line that a unit's own processes wrote."""
    command = ["journalctl", "--boot", "--output=cat", "--lines=1", "--no-pager", "_SYSTEMD_UNIT=" + unit]
    return run(command).stdout.decode("utf-8", "replace").strip()


def properties(units: list[str], names: list[str]) -> Iterator[Dict[str, Any]]:
    """Yield properties of units, by systemctl(1) show."""
    command = ["systemctl", "show", "--all", "--property=" + ",".join(names), "--", *units]
    for block in run(command).stdout.decode("utf-8", "replace").split("\n\n"):
        values = dict(line.partition("=")[::2] for line in block.splitlines())
        if values:
            yield values


def seconds(values: Dict[str, str], name: str) -> float | None:
    """Give a timestamp of the monotonic clock in seconds; None where it is not set."""
    text = values.get(name, "")
    return int(text) / 1e6 if text.isdecimal() and int(text) else None


def boot_times(port: Port, _settings: Settings) -> None:
    """Tell when each phase began: from what systemd-analyze itself works with."""
    stamps = ["Firmware", "Loader", "InitRD", "Userspace", "Finish"]
    manager = next(properties([], [name + "TimestampMonotonic" for name in stamps]), {})
    at = {name: seconds(manager, name + "TimestampMonotonic") for name in stamps}
    port.send("times", **{name.lower(): value for name, value in at.items()})


def slow_units(port: Port, _settings: Settings) -> None:
    """Tell which units took longest, and which chain of them the boot waited for."""
    listed = run(["systemd-analyze", "blame", "--no-pager"], ANALYSIS_SECONDS).stdout.decode(
        "utf-8", "replace"
    )
    for line in listed.splitlines()[:BLAME_LIMIT]:
        took, _, unit = line.strip().rpartition(" ")
        port.send("blame", unit=unit, seconds=sum(map(duration, took.split())))
    chain = run(["systemd-analyze", "critical-chain", "--no-pager"], ANALYSIS_SECONDS).stdout
    port.send("critical-chain", lines=chain.decode("utf-8", "replace").splitlines()[:60])


def duration(text: str) -> float:
    """Read one part of a time span as systemd writes it: ``1min``, ``2.345s``, ``678ms``."""
    for unit, length in (("min", 60.0), ("ms", 1e-3), ("us", 1e-6), ("s", 1.0), ("h", 3600.0)):
        if text.endswith(unit):
            return float(text[: -len(unit)]) * length
    return 0.0


def failed_units(port: Port, _settings: Settings) -> None:
    """Name the units that failed."""
    listed = run(["systemctl", "list-units", "--failed", "--plain", "--no-legend", "--no-pager"]).stdout
    port.send(
        "failed-units",
        units=[line.split()[0] for line in listed.decode("utf-8", "replace").splitlines() if line],
    )


def kernel_log(port: Port, _settings: Settings) -> None:
    """Send the lines of the kernel's log that may be about our parameters and devices."""
    descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    lines: list[str] = []
    while len(lines) < LINES_LIMIT:
        try:
            record = os.read(descriptor, 8192).decode("utf-8", "replace")
        except BlockingIOError:
            break
        except BrokenPipeError:  # the ring was overwritten; the next read goes on behind it
            continue
        head, _, text = record.partition(";")
        message = text.partition("\n")[0]
        # Facility 0 is the kernel's own (kmsg in Documentation/ABI/testing); systemd writes there too.
        is_kernels = int(head.partition(",")[0]) < 8 and "ommand line: " not in message
        if is_kernels and KERNEL_LINES.search(message):
            lines.append(message)
    os.close(descriptor)
    port.send("kernel-log", lines=lines)


def locked_memory(port: Port, _settings: Settings) -> None:
    """Have a login of a user, a service of that user and root each lock memory."""
    command = own("locked_memory.py")
    service = [
        "systemd-run",
        "--quiet",
        "--wait",
        "--pipe",
        "--collect",
        "--property=User=" + USER,
        "--",
        *command,
    ]
    for who, result in (("login", as_user(command)), ("service", run(service)), ("root", run(command))):
        lines = result.stdout.splitlines()
        if not lines:
            port.send("fault", text=who + " locks memory: " + result.stderr.decode("utf-8", "replace")[-500:])
            continue
        port.send(**dict(json.loads(lines[-1].decode()), who=who))


def check(port: Port, settings: Settings) -> None:
    """Run the checker as a user, and as root where that leaves something open."""
    command = own("tpu-image.pyz", "/", *settings["checker"])
    for who, start in (("user", as_user), ("root", run)):
        result = start(command, 300)
        try:
            document = json.loads(result.stdout.decode())
        except ValueError:
            port.send(
                "fault", text="the checker as " + who + ": " + result.stderr.decode("utf-8", "replace")[-500:]
            )
            continue
        port.send("check", who=who, document=document)
        if not document["summary"]["unknown"]:
            break


def commands(port: Port, settings: Settings) -> None:
    """Run the user's own commands as root, each in a shell."""
    for command in settings["run"]:
        began = time.monotonic()
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        status: int | None = None
        try:
            output = process.communicate(timeout=settings["run_seconds"])[0]
            status = process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            output = process.communicate()[0]
        told = output[-OUTPUT_LIMIT:].decode("utf-8", "replace")
        took = time.monotonic() - began
        port.send("run", command=command, status=status, output=told, seconds=took)


STEPS: tuple[tuple[str, Callable[[Port, Settings], None]], ...] = (
    ("identify", identify),
    ("wait for the boot to settle", settle),
    ("wait for a late device", wait_for_late_device),
    ("use the devices", devices),
    ("lock memory", locked_memory),
    ("run the checker", check),
    ("boot tasks", tasks),
    ("bindings", bindings),
    ("boot times", boot_times),
    ("slow units", slow_units),
    ("failed units", failed_units),
    ("kernel log", kernel_log),
    ("commands", commands),
)


BEFORE_THE_LAST = ("wait for the boot to settle", "commands")
"""Steps of the boots that only come before the one which is judged."""


def is_last_boot(settings: Settings) -> bool:
    """Count this boot, and say whether it is the last that is wanted."""
    number = int(text_of(BOOTS_DONE) or "0") + 1
    with open(BOOTS_DONE, "w", encoding="ascii") as file:
        file.write(str(number))
    return bool(number >= settings["boots"])


def main(path: str) -> None:
    """Take every step, report each, and switch off; or start anew, where further boots are wanted."""
    port = Port(path)
    with open(FOLDER + "/settings.json", encoding="utf-8") as file:
        settings = json.load(file)
    last = is_last_boot(settings)
    for name, step in STEPS:
        if not last and name not in BEFORE_THE_LAST:
            continue
        port.send("step-begins", name=name)
        try:
            step(port, settings)
        except Exception as error:  # the others are worth having all the same
            where = traceback.extract_tb(error.__traceback__)[-1]
            port.send("fault", text=f"{name}: {type(error).__name__}: {error} (line {where.lineno})")
    if not last:
        port.send("restart")
        subprocess.run(["systemctl", "reboot", "--no-block"], check=False)
        return
    port.send("end")
    if not settings["keep"]:
        subprocess.run(["systemctl", "poweroff", "--no-block"], check=False)


if __name__ == "__main__":
    main(sys.argv[1])
