"""Mutated images: every case follows from its seed, and only the two kinds of error may come of it.

``TPU_IMAGE_FUZZ_ROUNDS`` multiplies the rounds for a longer run by hand.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

from tpu_image.disks.errors import DiskError
from tpu_image.trees.base import TreeError

KIB = 1024
ROUNDS = int(os.environ.get("TPU_IMAGE_FUZZ_ROUNDS", "1"))
SECONDS = 3.0
"""What one mutated image may take on a busy machine; all of them together take a millisecond or a few each."""

MEMORY = 512 * 1024
"""KiB that reading hostile images may take."""

NUMBERS = (
    0,
    1,
    2,
    7,
    0x7F,
    0x80,
    0xFF,
    0x1000,
    0x7FFF,
    0xFFFF,
    0x10000,
    0x7FFF_FFFF,
    0xFFFF_FFFF,
    1 << 40,
    (1 << 63) - 1,
)

Area = tuple[int, int]
Mutate = Callable[[random.Random, bytearray], None]


def overwrite(chance: random.Random, data: bytearray, areas: list[Area]) -> None:
    """Change one to four places in the areas: bits, bytes, or numbers of either order that are near a limit."""
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        start, length = chance.choice(areas)
        at = start + chance.randrange(length)
        kind = chance.randrange(4)
        if kind == 0:
            data[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            data[at] = chance.randrange(256)
        else:
            width = chance.choice((2, 4, 8))
            order = chance.choice(("little", "big"))
            number = (chance.choice(NUMBERS) + chance.choice((-1, 0, 0, 1))) % (1 << 8 * width)
            at -= (at - start) % width if chance.random() < 0.9 else 0
            data[at : at + width] = number.to_bytes(width, order)  # type: ignore[arg-type]
            del data[start + len(data) :]


def peak_memory() -> int:
    """KiB that the process held at most."""
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])


def fuzz(
    base: bytes,
    areas: list[Area],
    rounds: int,
    read: Callable[[bytearray], None],
    repair: Mutate | None = None,
) -> None:
    """Read ``rounds`` mutations of an image, every other one with its checksums put right."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what is held now (proc(5))
    before = peak_memory()  # of whatever ran before in this process
    refused = 0
    for seed in range(rounds * ROUNDS):
        chance = random.Random(seed)
        data = bytearray(base)
        overwrite(chance, data, areas)
        if repair is not None and seed % 2:
            repair(chance, data)
        message = ""
        started = time.perf_counter()
        try:
            read(data)
        except (DiskError, TreeError) as error:
            refused += 1
            message = str(error)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
        assert time.perf_counter() - started < SECONDS, seed
        assert "\n" not in message, seed
    assert peak_memory() - before < MEMORY
    assert rounds * ROUNDS / 20 < refused < rounds * ROUNDS
