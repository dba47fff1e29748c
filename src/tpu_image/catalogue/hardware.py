"""TPU hardware: PCI ids, device nodes and machine types, each known here and nowhere else.

Sources: the udev rules of the document (section "Associa i dispositivi TPU a VFIO") for v5p, v6e and TPU7x;
the public clients jax (``hardware_utils.py``) and tpu-info for the other generations; the Compute Engine
pages on accelerator-optimised machine types for chips per machine; the Cloud TPU pages of each version (section
"Configurations") for accelerator types and topologies.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

GOOGLE_VENDOR = 0x1AE0
"""PCI vendor id of Google. It is on gVNIC and other devices too: never match a TPU by it alone."""


class NodeKind(enum.Enum):
    """Which device nodes a generation is used through."""

    ACCEL = "accel"
    """``/dev/accelN``, made by Google's own driver."""
    VFIO = "vfio"
    """``/dev/vfio/GROUP``, made by vfio-pci."""


class Generation(NamedTuple):
    """One TPU generation as the PCI bus and Google's image families show it."""

    name: str
    """The name on the command line and in documents: ``v6e``, ``tpu7x``."""
    device: int
    """PCI device id."""
    subsystem: int | None
    """PCI subsystem device id; None where it differs or is not published."""
    node: NodeKind
    functions_per_chip: int = 1
    """PCI functions, so VFIO groups, that one chip shows."""
    certified_ubuntu: str = ""
    """``VERSION_ID`` of the Ubuntu release that Google certifies for it; empty where none is published."""
    needs_scalable_mode: bool = False
    """Whether the document requires ``intel_iommu=on,sm_on`` for it (section "Parametri del kernel")."""
    accelerator: str = ""
    """How its accelerator types begin, where that is not its name: ``v5litepod`` of ``v5litepod-8``."""
    cores_per_chip: int = 1
    """TensorCores by which accelerator types count: a ``v5p-8`` has four chips."""
    dimensions: int = 2
    """Of its interconnect, so of its topologies: ``2x4`` or ``2x2x1``."""

    def accelerator_type(self, chips: int) -> str:
        """Name a slice of so many chips as the Cloud TPU API does: ``v6e-4``, ``v5p-8``."""
        return f"{self.accelerator or self.name}-{chips * self.cores_per_chip}"

    def topology(self, chips: int) -> str:
        """Give how the chips of one machine are connected: ``2x4``; a row where no machine has so many."""
        shape = HOST_TOPOLOGIES.get((self.dimensions, chips), (1, chips))
        return "x".join(map(str, shape + (1,) * (self.dimensions - len(shape))))


HOST_TOPOLOGIES: dict[tuple[int, int], tuple[int, ...]] = {
    (2, 1): (1, 1),
    (2, 4): (2, 2),
    (2, 8): (2, 4),
    (3, 1): (1, 1, 1),
    (3, 2): (1, 2, 1),
    (3, 4): (2, 2, 1),
}
"""Topologies by the dimensions of the interconnect and the chips of one machine."""

GENERATIONS: tuple[Generation, ...] = (
    Generation("v2", 0x0027, 0x004E, NodeKind.ACCEL, cores_per_chip=2),
    Generation("v3", 0x0027, 0x004F, NodeKind.ACCEL, cores_per_chip=2),
    Generation("v4", 0x005E, None, NodeKind.ACCEL, cores_per_chip=2, dimensions=3),
    Generation("v5e", 0x0063, 0x00AF, NodeKind.VFIO, certified_ubuntu="22.04", accelerator="v5litepod"),
    Generation(
        "v5p",
        0x0062,
        0x00AD,
        NodeKind.VFIO,
        certified_ubuntu="22.04",
        needs_scalable_mode=True,
        cores_per_chip=2,
        dimensions=3,
    ),
    Generation("v6e", 0x006F, 0x00D1, NodeKind.VFIO, certified_ubuntu="22.04"),
    Generation(
        "tpu7x",
        0x0076,
        0x00F2,
        NodeKind.VFIO,
        functions_per_chip=2,
        certified_ubuntu="24.04",
        needs_scalable_mode=True,
        cores_per_chip=2,
        dimensions=3,
    ),
)

DOCUMENTED: tuple[str, ...] = ("v5p", "v6e", "tpu7x")
"""The generations that the document lists, and the default of a profile."""


class MachineType(NamedTuple):
    """A Compute Engine machine type with TPUs."""

    name: str
    generation: str
    chips: int


MACHINE_TYPES: tuple[MachineType, ...] = (
    *(MachineType(f"ct5p-hightpu-{n}t", "v5p", n) for n in (1, 2, 4)),
    *(MachineType(f"ct5lp-hightpu-{n}t", "v5e", n) for n in (1, 4, 8)),
    *(MachineType(f"ct6e-standard-{n}t", "v6e", n) for n in (1, 4, 8)),
    *(MachineType(f"tpu7x-standard-{n}t", "tpu7x", n) for n in (1, 4)),
)


def machine_with(generation: Generation, chips: int) -> MachineType | None:
    """Find the machine type that has exactly these chips, or None."""
    return next((m for m in MACHINE_TYPES if (m.generation, m.chips) == (generation.name, chips)), None)


def generation(name: str) -> Generation:
    """Look a generation up by its name.

    Raises:
        KeyError: there is none of that name.
    """
    for candidate in GENERATIONS:
        if candidate.name == name:
            return candidate
    raise KeyError(name)


def identify(vendor: int, device: int, subsystem: int | None) -> Generation | None:
    """Name the generation of a PCI function, or None where it is no TPU.

    The subsystem decides only between generations that share a device id (v2 and v3): a function whose
    subsystem is not known to us is still a TPU.
    """
    if vendor != GOOGLE_VENDOR:
        return None
    same_device = [g for g in GENERATIONS if g.device == device]
    exact = [g for g in same_device if g.subsystem == subsystem]
    return next(iter(exact or same_device), None)
