"""A check's result: what was looked at, for what, and every verdict. Each format is a reading of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tpu_image.catalogue.requirement import Profile, Requirement, Status, Verdict


class Report(NamedTuple):
    """The verdicts on one target, in the catalogue's order."""

    target: str
    """What was checked, as the user named it."""
    profile: Profile
    verdicts: Sequence[Verdict]
    ok: bool
    """Whether the target holds what the profile asks."""
    requirements: Sequence[Requirement]
    """The catalogue that the verdicts answer, for titles and reasons."""
    root: str = ""
    """Absolute host path of the target's root where it is a directory; empty otherwise."""

    def counts(self) -> dict[Status, int]:
        """Count the verdicts of every status, those without one included."""
        counts = dict.fromkeys(Status, 0)
        for verdict in self.verdicts:
            counts[verdict.status] += 1
        return counts

    def requirement(self, verdict: Verdict) -> Requirement | None:
        """Find what the verdict is about; None where the catalogue has it not."""
        return next((r for r in self.requirements if r.id == verdict.requirement), None)
