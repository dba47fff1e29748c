"""Small images and machines for the tests of VFIO."""

from __future__ import annotations

from collections.abc import Mapping

from tpu_image.catalogue import vfio_modules
from tpu_image.trees.memory import Directory, File, MemoryTree, Node, Symlink
from tpu_image.trees.overlay import Overlay

Changes = Mapping[str, str | Node | None]
"""Path to a text (a file of mode 0644), a node, or None for what is taken away."""

KERNEL = "6.1.0-57-amd64"
SHELL = File(b"\x7fELF", 0o755)

BASE: dict[str, Node] = {
    "/lib": Symlink("usr/lib"),
    "/bin": Symlink("usr/bin"),
    "/usr/bin/sh": SHELL,
    "/usr/bin/bash": SHELL,
    "/usr/bin/env": SHELL,
    "/usr/bin/false": SHELL,
    "/usr/bin/logger": SHELL,
    "/etc/passwd": File(b"root:x:0:0:root:/root:/bin/bash\n"),
    "/etc/group": File(b"root:x:0:\nkvm:x:104:\nusers:x:1000:\n"),
    "/etc/gshadow": File(b"root:*::\n", 0o640, 0, 42),
    "/usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-252.so": File(b""),
    "/usr/lib/udev/rules.d/50-udev-default.rules": File(
        b'SUBSYSTEM=="pci", ENV{MODALIAS}!="", IMPORT{builtin}="hwdb --subsystem=pci"\n'
        b'KERNEL=="vfio", MODE="0666", OPTIONS+="static_node=vfio/vfio"\n'
        b'SUBSYSTEM=="tty", GROUP="dialout", MODE="0660"\n'
    ),
    "/usr/lib/udev/rules.d/80-drivers.rules": File(
        b'ACTION!="add", GOTO="drivers_end"\n'
        b'ENV{MODALIAS}=="?*", RUN{builtin}+="kmod load"\n'
        b'LABEL="drivers_end"\n'
    ),
    f"/usr/lib/modules/{KERNEL}/modules.dep": File(
        b"kernel/drivers/vfio/pci/vfio-pci.ko: kernel/drivers/vfio/vfio.ko\n"
        b"kernel/drivers/vfio/vfio_iommu_type1.ko.xz: kernel/drivers/vfio/vfio.ko\n"
    ),
    f"/usr/lib/modules/{KERNEL}/modules.builtin": File(b"kernel/drivers/pci/pci.ko\n"),
}


def image(*changes: Changes) -> MemoryTree:
    """The base with changes."""
    nodes = dict(BASE)
    for change in changes:
        for path, node in change.items():
            if node is None:
                nodes.pop(path, None)
            else:
                nodes[path] = File(node.encode("utf-8", "surrogateescape")) if isinstance(node, str) else node
    return MemoryTree(nodes)


def script(text: str, mode: int = 0o755) -> File:
    return File(text.encode(), mode)


def machine(functions: dict[str, tuple[int, str, str]], *changes: Changes) -> MemoryTree:
    """A running machine: address to device id, driver and IOMMU group of each function of vendor 1ae0.

    Those on vfio-pci have their group node, 0666.
    """
    nodes: dict[str, Node] = {
        "/sys/bus/pci/devices": Directory(),
        f"/sys/module/vfio_iommu_type1/parameters/{vfio_modules.PARAMETER}": File(b"Y\n"),
        "/etc/group": File(b"root:x:0:\ntpu:x:990:\n"),
    }
    for address, (device, driver, group) in functions.items():
        path = f"/sys/devices/pci0000:00/{address}"
        nodes[f"/sys/bus/pci/devices/{address}"] = Symlink(f"../../../devices/pci0000:00/{address}")
        nodes[f"{path}/vendor"] = File(b"0x1ae0\n")
        nodes[f"{path}/device"] = File(f"{device:#06x}\n".encode())
        nodes[f"{path}/class"] = File(b"0x120000\n")
        if driver:
            nodes[f"{path}/driver"] = Symlink(f"../../../bus/pci/drivers/{driver}")
        if group:
            nodes[f"{path}/iommu_group"] = Symlink(f"../../../kernel/iommu_groups/{group}")
            nodes[f"/sys/kernel/iommu_groups/{group}/devices/{address}"] = Symlink(
                f"../../../../devices/pci0000:00/{address}"
            )
        if driver == "vfio-pci":
            nodes[f"/dev/vfio/{group}"] = File(b"", 0o666)
    tree = MemoryTree(nodes)
    for change in changes:
        for path, node in change.items():
            assert node is not None
            tree.put(path, File(node.encode()) if isinstance(node, str) else node)
    return tree


def applied(overlay: Overlay) -> dict[str, Node | None]:
    """What an overlay changes for real: a write of what is there already is none."""
    return {path: node for path, node in overlay.written.items() if node != overlay.before(path)}
