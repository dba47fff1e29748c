"""Time of unpacking an agent's layers beside ``tar -x`` of the same layers.

    python benchmarks/agents.py LAYER.tar.gz... [--runs N] [--folder FOLDER]

The layers become an OCI layout. Each run times, one after another: ``tar -xpf`` of every layer in order, and ours from
the opened layout to the written directory, every digest verified; neither
waits for the disk. Other work on the machine slows both, so the figure
is the median of the ratios within each run; the order changes from run to run, since the first one waits for the disk.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tpu_image.agents.directory_writer import write_below
from tpu_image.agents.sources import opened
from tpu_image.agents.spool import Spool

LIMIT = 1.2
"""Times of ``tar -x`` that ours may take."""


def layout(folder: Path, layers: list[Path]) -> Path:
    """An OCI layout of an image of these layers, which are linked into it."""
    blobs = folder / "blobs/sha256"
    blobs.mkdir(parents=True)

    def put(data: bytes) -> dict[str, object]:
        name = hashlib.sha256(data).hexdigest()
        (blobs / name).write_bytes(data)
        return {"digest": f"sha256:{name}", "size": len(data)}

    def put_layer(path: Path) -> dict[str, object]:
        name = hashlib.sha256(path.read_bytes()).hexdigest()
        shutil.copyfile(path, blobs / name)
        return {"digest": f"sha256:{name}", "size": path.stat().st_size}

    configuration = put(b'{"os": "linux", "architecture": "amd64"}')
    manifest = {"schemaVersion": 2, "config": configuration, "layers": [put_layer(path) for path in layers]}
    index = {"schemaVersion": 2, "manifests": [put(json.dumps(manifest).encode())]}
    (folder / "index.json").write_text(json.dumps(index))
    return folder


def with_tar(layers: list[Path], folder: Path) -> None:
    folder.mkdir()
    for layer in layers:
        subprocess.run(["tar", "-xpf", layer, "-C", folder, "--exclude=./dev/*"], check=True)


def ours(source: Path, folder: Path) -> None:
    folder.mkdir()
    with Spool(folder) as spool, opened(str(source), spool) as image:
        write_below(
            str(folder), "/unpacked", 0o700, {"agent": image.unpack(spool).root}, spool, durable=False
        )


def timed(work: Callable[[Path], None], folder: Path) -> float:
    subprocess.run(["sync", "-f", folder.parent], check=True)
    began = time.perf_counter()
    work(folder)
    seconds = time.perf_counter() - began
    shutil.rmtree(folder)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("layers", nargs="+", type=Path, metavar="LAYER.tar.gz")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=None)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        source = layout(folder / "layout", options.layers)
        works: list[tuple[str, Callable[[Path], None]]] = [
            ("tar", lambda target: with_tar(options.layers, target)),
            ("ours", lambda target: ours(source, target)),
        ]
        ratios = []
        for run in range(options.runs):
            order = works if run % 2 else works[::-1]
            found = {name: timed(work, folder / name) for name, work in order}
            ratios.append(found["ours"] / found["tar"])
            print(
                f"run {run + 1}: tar {found['tar']:.2f} s, ours {found['ours']:.2f} s, {ratios[-1]:.2f} times"
            )
    ratio = statistics.median(ratios)
    print(f"ours takes {ratio:.2f} times tar -x, {min(ratios):.2f} to {max(ratios):.2f}; at most {LIMIT}")
    sys.exit(0 if ratio <= LIMIT else 1)


if __name__ == "__main__":
    main()
