"""What may be wrong with an emulated machine (``--fault``), beside its metadata server: its IOMMU and its devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tpu_image.catalogue.choices import ChoiceError

IOMMU_OFF = "iommu=off"
DEVICE_LATE = "device=late"

MEANINGS = {
    IOMMU_OFF: "the machine has no IOMMU",
    DEVICE_LATE: "the last function of the TPUs is plugged in after the boot",
}
"""Faults of the machine and what each is; those of the metadata server begin with ``metadata=``."""

METADATA = "metadata="


class Faults(NamedTuple):
    """Faults that were asked for, in the words of the command line."""

    iommu_off: bool = False
    device_late: bool = False
    metadata: Sequence[str] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """All of them."""
        machine = ((IOMMU_OFF, self.iommu_off), (DEVICE_LATE, self.device_late))
        return (*(word for word, asked in machine if asked), *self.metadata)


def parse(words: Iterable[str]) -> Faults:
    """Sort faults by whom they concern; what follows ``metadata=`` is not looked at here.

    Raises:
        ChoiceError: one is unknown.
    """
    given = [word.strip() for word in words]
    for word in given:
        if word not in MEANINGS and not word.startswith(METADATA):
            known = ", ".join((*MEANINGS, f"{METADATA}KIND"))
            raise ChoiceError(f"unknown fault {word[:80]!r}; give one of {known}")
    metadata = tuple(word for word in given if word.startswith(METADATA))
    return Faults(IOMMU_OFF in given, DEVICE_LATE in given, metadata)
