"""How long `check` and `apply` take on a real root, whole process, beside an interpreter that does nothing.

    python benchmarks/check_and_apply.py ROOT [ROUNDS]

ROOT is a directory that may be changed; every apply is undone before the next. What counts is the ratio to
`python -c pass`: of the median wall time on a quiet machine, and on a busy one of the least CPU time, which
other processes lengthen least.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

PROFILE = ("--no-agent", "--waive", "prerequisites.gcloud=not in Debian")


class Cost(NamedTuple):
    """What one run took, start-up included, in seconds."""

    wall: float
    cpu: float


def cost(command: Sequence[str]) -> Cost:
    """Run a command."""
    began, used = time.perf_counter(), _cpu_of_children()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return Cost(time.perf_counter() - began, _cpu_of_children() - used)


def _cpu_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main(root: Path, rounds: int) -> None:
    """Measure and print a table."""
    tool = str(Path(sys.executable).with_name("tpu-image"))
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "check": [tool, "check", str(root), *PROFILE],
        "apply": [tool, "apply", str(root), *PROFILE],
        "apply again (nothing to change)": [tool, "apply", str(root), *PROFILE],
        "apply --undo": [tool, "apply", str(root), "--undo"],
    }
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for command in commands.values():
        cost(command)  # fills the page cache and the byte code cache
    for _ in range(rounds):
        for name, command in commands.items():
            costs[name].append(cost(command))
    print(f"{'':34} {'median wall':>11} {'x pass':>7} {'least CPU':>11} {'x pass':>7}")
    nothing = summary(costs["python -c pass"])
    for name, measured in costs.items():
        wall, cpu = summary(measured)
        ratios = wall / nothing.wall, cpu / nothing.cpu
        print(f"{name:34} {wall * 1000:8.1f} ms {ratios[0]:7.1f} {cpu * 1000:8.1f} ms {ratios[1]:7.1f}")


def summary(costs: Sequence[Cost]) -> Cost:
    """Median wall time, least CPU time."""
    return Cost(statistics.median(c.wall for c in costs), min(c.cpu for c in costs))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 15)
