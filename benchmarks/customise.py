"""Time of running programs in an image: in namespaces, and in a virtual machine.

    sudo python benchmarks/customise.py BASE [--runs N] [--packages NAME...]

Each way runs the same session on a fresh copy of the base, an image of Debian: one step that does nothing, then
``apt-get update``, then the installation of packages. What is printed are medians of N runs, in turn, by step, and
their ratios. The first step's time is what the way itself costs: for the virtual machine, the start of QEMU and of the
image's kernel. The least that either can take is what the programs take, which the namespace's time is nearest to.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from tpu_image.customise import executors
from tpu_image.customise.session import Session, Step
from tpu_image.disks.archive import write_raw
from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.image import open_image

APT = ("/usr/bin/apt-get", "-y", "-qq", "-o", "Dpkg::Use-Pty=0")
NAMES = ("until the first step", "apt-get update", "apt-get install", "until all is written", "all")


class Clock:
    """A listener that notes when each step began."""

    def __init__(self) -> None:
        self.began = [time.monotonic()]

    def step(self, name: str) -> None:
        """Note the time; a way that tells of its own start does not count that as a step."""
        if name in ("update", "install", "nothing"):
            self.began.append(time.monotonic())

    def line(self, text: str) -> None:
        """What is written does not matter here."""

    def waiting(self, name: str, seconds: float) -> None:
        """Neither does silence."""


def session(packages: list[str]) -> Session:
    """What each way runs."""
    return Session(
        (
            Step("nothing", ("/bin/true",)),
            Step("update", (*APT, "update")),
            Step("install", (*APT, "install", *packages)),
            Step("nothing", ("/bin/true",)),
        )
    )


def measured(way: str, base: Path, packages: list[str]) -> list[float]:
    """Seconds of each part of a session, and of all of it."""
    executor = executors.executor(way)
    executor.require()
    with tempfile.NamedTemporaryFile(dir=base.parent, suffix=".raw") as disk:
        subprocess.run(["cp", "--sparse=always", base, disk.name], check=True)
        clock = Clock()
        with Path(disk.name).open("r+b") as file:
            executor.execute(file, session(packages), clock)
        ended = time.monotonic()
    started, first, update, install, last = clock.began
    return [first - started, install - update, last - install, ended - last, ended - started]


def main() -> None:
    """Measure both ways in turn, and print them side by side."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--packages", nargs="+", default=["cowsay"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        raw = Path(folder) / "base.raw"
        with open_image(options.base) as source, raw.open("w+b") as file:
            write_raw(EditedDisk(source), file, hashed=False)
        runs: dict[str, list[list[float]]] = {way: [] for way in executors.NAMES}
        for _ in range(options.runs):
            for way, found in runs.items():
                found.append(measured(way, raw, options.packages))
    medians = {
        way: [statistics.median(part) for part in zip(*found, strict=True)] for way, found in runs.items()
    }
    print(f"{'':22}" + "".join(f"{way:>18}" for way in medians) + f"{'ratio':>9}")
    for name, *times in zip(NAMES, *medians.values(), strict=True):
        print(
            f"{name:22}" + "".join(f"{seconds:16.1f} s" for seconds in times) + f"{times[1] / times[0]:9.1f}"
        )


if __name__ == "__main__":
    main()
