"""How long `check` and `apply` take on a real root, whole process, beside an interpreter that does nothing.

    python benchmarks/check_and_apply.py ROOT [ROUNDS]

ROOT is a directory that may be changed; every apply is undone before the next. Figures are medians,
and what counts is the ratio to `python -c pass`, since the machine is shared.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

PROFILE = ("--no-agent", "--waive", "prerequisites.gcloud=not in Debian")


def seconds(command: Sequence[str]) -> float:
    """Wall time of one run, start-up included."""
    began = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - began


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
    times: dict[str, list[float]] = {name: [] for name in commands}
    for command in commands.values():
        seconds(command)  # fills the page cache and the byte code cache
    for _ in range(rounds):
        for name, command in commands.items():
            times[name].append(seconds(command))
    nothing = statistics.median(times["python -c pass"])
    for name, values in times.items():
        median = statistics.median(values)
        print(f"{name:34} {median * 1000:7.1f} ms   {median / nothing:5.1f} x python -c pass")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 15)
