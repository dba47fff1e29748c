"""The chips of an emulated machine: what was asked for, where each function is plugged, and how QEMU is told.

A function is known by ``SLOT.FUNCTION`` everywhere: it names the socket of the emulated function and QEMU's device, and
ends its address in the guest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tpu_image.catalogue import choices, hardware
from tpu_image.catalogue.choices import ChoiceError
from tpu_image.catalogue.hardware import GOOGLE_VENDOR, Generation, MachineType, NodeKind
from tpu_image.lab.vfio_user.config_space import Identity

FIRST_SLOT = 0x08
LAST_SLOT = 0x1B
"""Slots of QEMU's machine q35 for chips: below are its standard devices, above what is plugged in later and the
chipset (``hw/i386/pc_q35.c``: 1f)."""

LIMIT = LAST_SLOT - FIRST_SLOT + 1
"""Chips that one emulated machine has room for."""


class Function(NamedTuple):
    """One PCI function of a chip. ``chip`` counts from 0."""

    generation: Generation
    chip: int
    slot: int
    number: int

    @property
    def name(self) -> str:
        """``SLOT.FUNCTION`` as QEMU and lspci write it: ``08.0``."""
        return f"{self.slot:02x}.{self.number}"

    @property
    def address(self) -> str:
        """Where the guest finds it: domain, bus, device, function."""
        return f"0000:00:{self.name}"

    @property
    def identity(self) -> Identity:
        """Its PCI ids."""
        return Identity(GOOGLE_VENDOR, self.generation.device, GOOGLE_VENDOR, self.generation.subsystem or 0)

    def device(self, socket: Path) -> str:
        """Give the value of QEMU's option ``-device``, as JSON."""
        properties: dict[str, object] = {
            "driver": "vfio-user-pci",
            "id": f"tpu-{self.name.replace('.', '-')}",
            "addr": self.name,
            "socket": {"type": "unix", "path": str(socket)},
        }
        if self.generation.functions_per_chip > 1:
            properties["multifunction"] = True
        return json.dumps(properties)


class Chips(NamedTuple):
    """What a machine has: chips of one generation or several, in the order of their slots.

    Attributes:
        asked: how it was asked for: ``v6e:4`` or ``ct6e-standard-4t``.
        counts: generations and the number of chips of each.
    """

    asked: str
    counts: tuple[tuple[Generation, int], ...]

    @property
    def total(self) -> int:
        """Chips of all generations."""
        return sum(count for _, count in self.counts)

    @property
    def machine_type(self) -> MachineType | None:
        """The machine type of Compute Engine that has exactly these, if there is one."""
        return hardware.machine_with(*self.counts[0]) if len(self.counts) == 1 else None

    @property
    def generations(self) -> tuple[Generation, ...]:
        """The generations, in the catalogue's order."""
        present = {generation.name for generation, _ in self.counts}
        return tuple(generation for generation in hardware.GENERATIONS if generation.name in present)

    def functions(self) -> tuple[Function, ...]:
        """Give every function with its place: a slot for each chip, function 0 first, as QEMU wants it."""
        return tuple(self._functions())

    def _functions(self) -> Iterator[Function]:
        generations = [generation for generation, count in self.counts for _ in range(count)]
        for chip, generation in enumerate(generations):
            for number in range(generation.functions_per_chip):
                yield Function(generation, chip, FIRST_SLOT + chip, number)


def parse(words: str) -> Chips:
    """Read ``v6e:4``, or several of that kind separated by commas; ``v6e`` alone is one chip.

    Raises:
        ChoiceError: a generation is unknown or cannot be emulated, a number is none, or there are too many chips.
    """
    counts = tuple(_count(word.strip().lower()) for word in words.split(",") if word.strip())
    if not counts:
        raise ChoiceError(f"{words!r} names no chips; give GENERATION:NUMBER, such as v6e:4")
    names = [generation.name for generation, _ in counts]
    twice = next((name for name in names if names.count(name) > 1), "")
    if twice:
        raise ChoiceError(f"{words!r} names {twice} twice; give the number of its chips once")
    return _checked(Chips(",".join(f"{generation.name}:{count}" for generation, count in counts), counts))


def of_machine(machine: MachineType) -> Chips:
    """Give the chips of a machine type."""
    return Chips(machine.name, ((hardware.generation(machine.generation), machine.chips),))


def _count(word: str) -> tuple[Generation, int]:
    name, colon, number = (part.strip() for part in word.partition(":"))
    (generation,) = choices.generations(name) if name else (None,)
    if generation is None:
        raise ChoiceError(f"{word!r} names no TPU generation; give GENERATION:NUMBER, such as v6e:4")
    if generation.node is not NodeKind.VFIO:
        able = ", ".join(_emulated())
        raise ChoiceError(
            f"{generation.name} needs Google's own driver and cannot be emulated; give one of {able}"
        )
    if not colon:
        return generation, 1
    if not (number.isascii() and number.isdigit() and len(number) < 6 and int(number)):
        raise ChoiceError(f"{number!r} is no number of {generation.name} chips; give 1 to {LIMIT}")
    return generation, int(number)


def _checked(chips: Chips) -> Chips:
    if chips.total > LIMIT:
        raise ChoiceError(f"{chips.asked} is {chips.total} chips; an emulated machine has room for {LIMIT}")
    return chips


def _emulated() -> Sequence[str]:
    return [generation.name for generation in hardware.GENERATIONS if generation.node is NodeKind.VFIO]
