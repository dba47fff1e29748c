"""How fast a directory is read as a tree, beside the system calls themselves, which follow links out of it.

    python benchmarks/trees.py [ROOT]

ROOT is any directory with an ``etc``. The figures are processor time, user and system, of the best of several
rounds; what counts is the ratio, since the machine may be shared. One check makes a few hundred look-ups.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tpu_image.trees.base import Kind
from tpu_image.trees.directory import DirectoryTree

ROUNDS = 7
PATHS = 2000
SMALL = 65536


def some_paths(root: Path) -> list[str]:
    """Files of the root's configuration, every second with its name misspelt."""
    found: list[str] = []
    for top, _, names in os.walk(root / "etc"):
        inside = "/" + str(Path(top).relative_to(root))
        found += [f"{inside}/{name}" + "~" * (n % 2) for n, name in enumerate(names)]
    return found[:PATHS]


def microseconds(look: Callable[[str], object], paths: Sequence[str]) -> float:
    """Processor time of one look-up."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        for path in paths:
            look(path)
        best = min(best, time.process_time() - began)
    return best / len(paths) * 1e6


def read(path: str) -> bytes:
    """Read a small file with as few system calls as there can be."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, SMALL)
    finally:
        os.close(descriptor)


def is_small_file(tree: DirectoryTree, path: str) -> bool:
    """Whether reading it plainly is possible and means the same."""
    entry = tree.lstat(path)
    return entry is not None and entry.kind is Kind.FILE and entry.size < SMALL


def main(root: Path) -> None:
    """Measure and print a table."""
    paths = some_paths(root)
    top = str(root).rstrip("/")
    with DirectoryTree(root) as tree:
        files = [path for path in paths if is_small_file(tree, path)]
        rows: list[tuple[str, Callable[[str], object], Callable[[str], object], list[str]]] = [
            ("look up", tree.exists, lambda path: os.access(top + path, os.F_OK), paths),
            ("read", tree.read_bytes, lambda path: read(top + path), files),
        ]
        print(f"{'':8} {'DirectoryTree':>28} {'plain':>14} {'ratio':>6}   ({len(paths)} paths of {root}/etc)")
        for name, ours, plain, looked_up in rows:
            mine, theirs = microseconds(ours, looked_up), microseconds(plain, looked_up)
            print(f"{name:8} {mine:8.1f} us {1e6 / mine:12,.0f} /s {theirs:11.1f} us {mine / theirs:6.1f}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "/"))
