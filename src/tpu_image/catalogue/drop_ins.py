"""Names for drop-ins of our own: late enough to be the last word, and the same on every run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from tpu_image.trees.base import Tree
from tpu_image.trees.overlay import Overlay

NAME = "99-tpu-image.conf"
"""The usual name; later than what distributions and most sites use."""


def late_names(others: Iterable[str], name: str = NAME) -> tuple[str, ...]:
    """Names to try, in this order, for a drop-in that must come after those that contradict it.

    The usual one first; then one that sorts behind the last of the others, made from its name: ``zz.conf``
    gives ``zz.tpu-image.conf``, and ``t`` comes after ``c``.
    """
    last = max((other for other in others if other != name), key=os.fsencode, default="")
    stem = last.removesuffix(".conf")
    return (name,) if os.fsencode(last) < os.fsencode(name) else (name, f"{stem}.tpu-image.conf")


def write_late(
    overlay: Overlay,
    directory: str,
    names: Iterable[str],
    suffices: Callable[[Tree], bool],
    write: Callable[[Overlay, str], None],
) -> None:
    """Write under the first name that comes late enough to have the effect; nothing where none has it."""
    if suffices(overlay):
        return
    for name in names:
        path = f"{directory}/{name}"
        trial = Overlay(overlay)
        write(trial, path)
        if suffices(trial):
            overlay.absorb(trial)
            return
