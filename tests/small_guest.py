"""A guest that is a kernel and one program: it boots in seconds where a whole system takes minutes."""

from __future__ import annotations

import gzip
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tpu_image.inspection import opened

LIMIT = 1 << 28
MODULES = ("vfio_iommu_type1.ko", "vfio-pci.ko")


def kernel_and_modules(image: Path) -> tuple[bytes, list[bytes]]:
    """The newest kernel of an image, and its VFIO modules with what they need, in the order to load them in."""
    with opened(str(image)) as target:
        tree = target.tree
        kernel = sorted(name for name in tree.names("/boot") if name.startswith("vmlinuz-"))[-1]
        folder = f"/lib/modules/{kernel.removeprefix('vmlinuz-')}"
        lines = tree.read_text(f"{folder}/modules.dep", LIMIT).splitlines()
        needs = {name: others.split() for name, _, others in (line.partition(":") for line in lines)}
        order: list[str] = []

        def add(name: str) -> None:
            for other in reversed(needs[name]):
                add(other)
            if name not in order:
                order.append(name)

        for name in needs:
            if name.rpartition("/")[2] in MODULES:
                add(name)
        return tree.read_bytes(f"/boot/{kernel}", LIMIT), [
            tree.read_bytes(f"{folder}/{name}", LIMIT) for name in order
        ]


def program(source: Path, folder: Path) -> bytes:
    """Compile a program that needs no library."""
    command = ["gcc", "-static", "-O1", "-w", "-o", str(folder / "program"), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr}\ngcc and libc6-dev are needed: apt-get install gcc libc6-dev"
    return (folder / "program").read_bytes()


def initial_memory(init: bytes, modules: Sequence[bytes]) -> bytes:
    """An initramfs in the format newc (Documentation/driver-api/early-userspace/buffer-format.rst of the kernel)."""
    files = {"dev": b"", "init": init, **{f"{number}.ko": module for number, module in enumerate(modules)}}
    archive = bytearray()
    for number, (name, content) in enumerate([*files.items(), ("TRAILER!!!", b"")], 1):
        mode = 0o40755 if name == "dev" else 0o100755
        path = name.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
        for part in (b"070701" + b"".join(b"%08x" % field for field in fields) + path, content):
            archive += part + bytes(-(len(archive) + len(part)) % 4)
    return gzip.compress(bytes(archive), 1)
