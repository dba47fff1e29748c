"""Time of a whole build beside the ways people do it today, and beside its own goals.

    python benchmarks/build.py BASE [--runs N] [--folder FOLDER] [--skip-slow] [-- OPTIONS OF tpu-image build]

BASE is a qcow2 image of a Debian. Each run times, one after another, on the same base:

- ours: ``tpu-image build`` as a process, with its peak memory and what it holds on the disk at most;
- packing alone: ``tar --format=oldgnu -Sc disk.raw | igzip -1``, the raw disk being there already;
- conversion alone: ``qemu-img convert -O raw``;
- and once: ours as qcow2, with deflate and with zstd, beside ``qemu-img convert -c``;
- and once, as root: conversion, a few files written through a loop mount, ``tar -Sczf`` (the slow part).

Other work on the machine slows all of them, so the table gives the median of the ratios within each run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

MIB = 1 << 20
SAMPLES = 0.02
"""Seconds between two looks at the files that ours has open."""


class Goal(NamedTuple):
    """What a figure must not exceed, and the figure."""

    what: str
    found: float
    limit: float
    unit: str


class Ours(NamedTuple):
    """One build: wall and processor time in seconds, sizes in bytes."""

    seconds: float
    processor: float
    memory: int
    scratch: int
    output: int


def build(base: Path, folder: Path, options: list[str], name: str = "ours.tar.gz") -> Ours:
    output = folder / name
    output.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tpu_image", "build", str(base), "-o", str(output), "--quiet", *options]
    began = time.perf_counter()
    with subprocess.Popen(command) as process, sampled(process.pid, folder) as scratch:
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"tpu-image build ended with {process.returncode}")
    return Ours(
        seconds,
        usage.ru_utime + usage.ru_stime,
        usage.ru_maxrss * 1024,
        max(scratch()),
        output.stat().st_size,
    )


@contextlib.contextmanager
def sampled(process: int, folder: Path) -> Iterator[Callable[[], list[int]]]:
    """Look again and again at what a process holds on the disk: files with a name in the folder, and without."""
    found, done = [0], threading.Event()

    def look() -> None:
        while not done.wait(SAMPLES):
            found.append(held(process, folder))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield lambda: found
    finally:
        done.set()
        thread.join()


def held(process: int, folder: Path) -> int:
    """Bytes of the files below the folder that a process has open, an unnamed one counted once."""
    files: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{process}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(link.readlink()).startswith(f"{folder}/"):
                    status = link.stat()
                    files[status.st_ino] = status.st_blocks * 512
    for path in folder.glob("*ours*"):
        with contextlib.suppress(OSError):
            status = path.stat()
            files[status.st_ino] = status.st_blocks * 512
    return sum(files.values())


def timed(command: str, folder: Path) -> float:
    """Run a line of shell in the folder."""
    began = time.perf_counter()
    subprocess.run(["bash", "-euo", "pipefail", "-c", command], cwd=folder, check=True)
    return time.perf_counter() - began


def by_loop_mount(base: Path, folder: Path, offset: int) -> float:
    """The classic way, as root."""
    return timed(
        f"""
        qemu-img convert -O raw {base} disk.raw
        device=$(losetup --find --show --offset {offset} disk.raw)
        trap 'umount mounted 2>/dev/null || true; losetup --detach "$device"' EXIT
        mkdir -p mounted
        mount "$device" mounted
        echo 'SUBSYSTEM=="accel", MODE="0666"' > mounted/etc/udev/rules.d/99-tpu.rules
        echo 'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX idle=poll"' > mounted/etc/default/grub.d/99-tpu.cfg
        echo '* hard memlock unlimited' >> mounted/etc/security/limits.conf
        sed -i 's/ ro / ro idle=poll /' mounted/boot/grub/grub.cfg
        umount mounted
        losetup --detach "$device"
        trap - EXIT
        tar --format=oldgnu -Sczf classic.tar.gz disk.raw
        """,
        folder,
    )


def as_qcow2(base: Path, folder: Path, options: list[str]) -> None:
    """Print time and size of ours as qcow2, and of what qemu-img makes of the raw disk."""
    for form in ("qcow2", "qcow2-zstd"):
        ours = build(base, folder, ["--format", form, *options], "ours.qcow2")
        print(f"{'ours as ' + form:32} {ours.seconds:6.1f} s  {ours.output / MIB:6.0f} MiB")
    for kind in ("zlib", "zstd"):
        target = folder / "theirs.qcow2"
        command = f"qemu-img convert -c -W -O qcow2 -o compression_type={kind} disk.raw {target.name}"
        seconds = timed(command, folder)
        print(f"{'qemu-img convert -c, ' + kind:32} {seconds:6.1f} s  {target.stat().st_size / MIB:6.0f} MiB")
        target.unlink()


def root_offset(base: Path) -> int:
    from tpu_image.disks.image import open_image
    from tpu_image.disks.image_tree import open_tree

    with open_image(base) as source:
        partition = open_tree(source).root.volume.partition
    return partition.start if partition else 0


def report(ours: list[Ours], packing: list[float], conversion: list[float], classic: float) -> bool:
    """Print the tables; say whether every goal is met."""
    rows = [
        ("ours", [one.seconds for one in ours]),
        ("tar | igzip -1", packing),
        ("qemu-img convert", conversion),
    ]
    if classic:
        rows.append(("convert, loop mount, tar -Sczf", [classic]))
    print(f"{'':32} {'best':>8}  {'of ours':>8}")
    for what, seconds in rows:
        ratio = statistics.median(one / own.seconds for one, own in zip(seconds, ours, strict=False))
        print(f"{what:32} {min(seconds):6.1f} s  {ratio:7.2f}x")
    print(
        f"ours: {min(one.processor for one in ours):.1f} s of processor, {ours[0].output / MIB:.0f} MiB written\n"
    )
    goals = [
        Goal(
            "wall time beside tar | igzip -1",
            statistics.median(own.seconds / one for own, one in zip(ours, packing, strict=True)),
            0.75,
            "",
        ),
        Goal("peak memory", max(one.memory for one in ours) / MIB, 200, " MiB"),
        Goal("scratch beyond the output", max(one.scratch - one.output for one in ours) / MIB, 128, " MiB"),
    ]
    if classic:
        goals.append(
            Goal("wall time beside the classic way", min(one.seconds for one in ours) / classic, 1 / 12, "")
        )
    for goal in goals:
        met = "met" if goal.found <= goal.limit else "MISSED"
        print(f"{goal.what:34} {goal.found:8.3f}{goal.unit} (at most {goal.limit:.3f}{goal.unit}): {met}")
    return all(goal.found <= goal.limit for goal in goals)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time tpu-image build beside the ways people do it today.")
    parser.add_argument("base", type=Path)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--folder", type=Path, help="where there is room for some 6 GB")
    parser.add_argument("--skip-slow", action="store_true", help="leave the classic way out")
    own, _, options = " ".join(sys.argv[1:]).partition(" -- ")
    arguments = parser.parse_args(own.split())
    base: Path = arguments.base.resolve()
    for tool in ("igzip", "qemu-img", "tar"):
        if shutil.which(tool) is None:
            sys.exit(f"{tool} is not installed: apt-get install isal qemu-utils tar")
    ours, packing, conversion, classic = [], [], [], 0.0
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name).resolve()
        for _ in range(arguments.runs):
            conversion.append(timed(f"qemu-img convert -O raw {base} disk.raw", folder))
            ours.append(build(base, folder, options.split()))
            packing.append(timed("tar --format=oldgnu -Sc disk.raw | igzip -1 > packed.tar.gz", folder))
        if not arguments.skip_slow:
            as_qcow2(base, folder, options.split())
            classic = by_loop_mount(base, folder, root_offset(base))
    sys.exit(0 if report(ours, packing, conversion, classic) else 1)


if __name__ == "__main__":
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    main()
