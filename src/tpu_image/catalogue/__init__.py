"""What a Cloud TPU image needs: every requirement, once.

Each module holds one section of the document and ends with ``REQUIREMENTS``; this joins them in the order in
which reports show them. A requirement added to a module appears in every reading: check, apply, render,
explain.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence

from tpu_image.catalogue.requirement import Requirement
from tpu_image.catalogue.sections import section

MODULES = (
    "support",
    "prerequisites",
    "vfio",
    "device_nodes",
    "limits",
    "kernel_cmdline",
    "vbar_agent",
    "telemetry",
    "environment",
    "metadata",
    "storage_timeouts",
    "gke",
    "boot",
    "image_state",
)
"""The modules of the catalogue, in the order of the document's sections."""


class UnknownRequirementError(LookupError):
    """No requirement has the id; ``nearest`` lists ids, or sections, that look like it."""

    def __init__(self, requirement: str) -> None:
        import difflib

        ids = [r.id for r in requirements()]
        names = ids if "." in requirement else [*dict.fromkeys(map(section, ids))]
        self.nearest = tuple(difflib.get_close_matches(requirement.lower(), names, n=3, cutoff=0.6))
        hint = (
            f"did you mean {' or '.join(self.nearest)}?" if self.nearest else "tpu-image explain lists them"
        )
        super().__init__(f"no requirement {requirement!r}: {hint}")


@functools.cache
def requirements() -> tuple[Requirement, ...]:
    """Every requirement, in the order of reports: those about images first, then those about machines."""
    found: list[Requirement] = []
    for name in MODULES:
        module = importlib.import_module(f"{__name__}.{name}")
        found.extend(module.REQUIREMENTS)
    return tuple(sorted(found, key=lambda requirement: requirement.live))


def find(requirement: str) -> Requirement:
    """Look a requirement up by its id.

    Raises:
        UnknownRequirementError: there is none of that id.
    """
    for candidate in requirements():
        if candidate.id == requirement:
            return candidate
    raise UnknownRequirementError(requirement)


def select(only: Sequence[str]) -> tuple[Requirement, ...]:
    """Give the requirements named by id or by section (``kernel``); all for an empty list.

    Raises:
        UnknownRequirementError: a name is neither.
    """
    if not only:
        return requirements()
    sections = {section(r.id) for r in requirements()}
    for name in only:
        if name not in sections:
            find(name)
    return tuple(r for r in requirements() if r.id in only or section(r.id) in only)
