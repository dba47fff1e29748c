"""Time of reading a disk image where it lies, beside debugfs on the same disk.

    python benchmarks/check_disk.py IMAGE [--runs N]

The work is that of a check: find the partitions and mount points, look 300 paths up, read 100 small files and a few
large ones. Each way does it in a fresh process, and its best wall time of N runs counts:

- ours on the image as it is;
- debugfs on the raw disk, whose conversion (``qemu-img convert``) is timed by itself;
- debugfs on the image through a FUSE export of qemu-storage-daemon, its start included.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tpu_image.disks.image import open_image
from tpu_image.disks.image_tree import ImageTree, open_tree

LOOKUPS, SMALL_FILES = 300, 100
CHILD = [sys.executable, __file__, "--child"]
FOLDERS = (
    "/etc",
    "/etc/udev/rules.d",
    "/usr/lib/udev/rules.d",
    "/etc/systemd/system",
    "/usr/lib/systemd/system",
)


class Work(NamedTuple):
    """What is read: paths to look up and files to read, and where the root starts on the disk, in bytes."""

    lookups: list[str]
    reads: list[str]
    offset: int


def work_of(tree: ImageTree) -> Work:
    """Choose what a check of this image would read."""
    # debugfs reads a link as if it were a file, so paths are free of links.
    files = [tree.resolve(path) for folder in FOLDERS for path in tree.files(folder)]
    releases = tree.names("/usr/lib/modules")
    large = [
        f"/usr/lib/modules/{name}/{file}" for name in releases for file in ("modules.dep", "modules.alias")
    ]
    partition = tree.root.volume.partition
    small = [path for path in files if 0 < tree_size(tree, path) < 100_000][:SMALL_FILES]
    return Work(files[:LOOKUPS], [*small, *filter(tree.is_file, large)], partition.start if partition else 0)


def tree_size(tree: ImageTree, path: str) -> int:
    entry = tree.stat(path)
    return entry.size if entry else 0


def read_all(image: str, work: Work) -> None:
    """Do the work through our own tree."""
    with open_image(image) as source:
        tree = open_tree(source)
        for path in work.lookups:
            tree.stat(path)
        for path in work.reads:
            tree.read_bytes(path)


def ours(image: Path, work: Work) -> Callable[[], None]:
    """Do it in a fresh interpreter, which starts and imports as the tool does."""
    return started(CHILD, task_of(image, work))


def task_of(image: Path, work: Work) -> bytes:
    return json.dumps([str(image), work.lookups, work.reads]).encode()


def started(command: list[str], text: bytes = b"") -> Callable[[], None]:
    """Make a command, with what it reads, something to be timed; what it prints is dropped."""

    def run() -> None:
        subprocess.run(command, input=text, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    return run


def debugfs(disk: Path, work: Work) -> Callable[[], None]:
    lines = [f'stat "{path}"' for path in work.lookups] + [f'cat "{path}"' for path in work.reads]
    command = ["debugfs", "-f", "-", f"{disk}?offset={work.offset}"]
    script = "\n".join(lines).encode()
    return started(command, script)


def debugfs_through_fuse(image: Path, folder: Path, work: Work) -> Callable[[], None]:
    export = folder / "export"
    command = [
        "qemu-storage-daemon",
        "--blockdev", f"driver=file,node-name=file,filename={image},read-only=on",
        "--blockdev", "driver=qcow2,node-name=disk,file=file,read-only=on",
        "--export", f"type=fuse,id=export,node-name=disk,mountpoint={export},writable=off",
    ]  # fmt: skip

    def run() -> None:
        export.touch()
        with subprocess.Popen(command) as daemon:
            try:
                while export.stat().st_size == 0 and daemon.poll() is None:
                    time.sleep(0.005)
                debugfs(export, work)()
            finally:
                daemon.terminate()

    return run


def best_of(runs: int, action: Callable[[], None]) -> float:
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time a check's reads of a qcow2 image beside debugfs.")
    parser.add_argument("image", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    with open_image(arguments.image) as source:
        work = work_of(open_tree(source))
    with tempfile.TemporaryDirectory() as name:
        raw = Path(name) / "disk.raw"
        convert = ["qemu-img", "convert", "-O", "raw", str(arguments.image), str(raw)]
        conversion = best_of(1, started(convert))
        rows = {
            "ours": best_of(arguments.runs, ours(arguments.image, work)),
            "debugfs on the raw disk": best_of(arguments.runs, debugfs(raw, work)),
            "  its conversion": conversion,
            "debugfs through FUSE": best_of(
                arguments.runs, debugfs_through_fuse(arguments.image, Path(name), work)
            ),
        }
    task = task_of(arguments.image, work)
    alone, peak = subprocess.run(CHILD, input=task, check=True, stdout=subprocess.PIPE).stdout.split()
    print(f"{len(work.lookups)} lookups, {len(work.reads)} files read, best of {arguments.runs}")
    for what, seconds in rows.items():
        print(f"{what:26} {seconds:7.3f} s  {seconds / rows['ours']:6.1f} times ours")
    print(f"ours without start-up: {float(alone):.3f} s, peak memory {int(peak)} MiB")


def child() -> None:
    image, lookups, reads = json.load(sys.stdin)
    began = time.perf_counter()
    read_all(image, Work(lookups, reads, 0))
    print(time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


if __name__ == "__main__":
    os.environ["PATH"] += ":/usr/sbin"
    child() if sys.argv[1:] == ["--child"] else main()
