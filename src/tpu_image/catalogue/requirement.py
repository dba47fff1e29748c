"""The words of the catalogue: Requirement, Verdict, Evidence, Profile."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tpu_image.catalogue import hardware
from tpu_image.catalogue.hardware import Generation
from tpu_image.trees.base import Tree
from tpu_image.trees.overlay import Overlay


class Platform(enum.Enum):
    """Who starts the machines: the two differ in who brings the agents."""

    COMPUTE_ENGINE = "compute-engine"
    GKE = "gke"


@dataclass(frozen=True)
class Profile:
    """What an image is made for."""

    platform: Platform = Platform.COMPUTE_ENGINE
    generations: tuple[Generation, ...] = tuple(hardware.generation(n) for n in hardware.DOCUMENTED)
    architecture: str = "x86_64"
    telemetry: bool = False
    device_group: str = ""
    """Group that owns the device nodes with mode 0660; empty for the document's 0666."""
    agent_elsewhere: bool = False
    """The vBar agent is brought by something else, so the image need not hold it."""
    waivers: Mapping[str, str] = field(default_factory=dict)
    """Requirement id to the reason for which it need not hold."""

    @property
    def device_mode(self) -> int:
        """Permission bits that the TPU's device nodes must have."""
        return 0o660 if self.device_group else 0o666


class Status(enum.Enum):
    """What is known about a requirement. Only ``PASS`` counts as holding."""

    PASS = "pass"
    FAIL = "fail"
    WARN = "warn"
    """It holds for what is required, and something beside it deserves attention."""
    SKIP = "skip"
    """Deliberately not looked at: it does not apply here, or was waived."""
    UNKNOWN = "unknown"
    """Looked at and not decidable from here."""


def counted(number: int, noun: str) -> str:
    """Say how many there are: ``1 chip``, ``2 chips``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


class Evidence(NamedTuple):
    """One observation behind a verdict. ``line`` counts from 1; 0 where there is no line."""

    path: str
    line: int = 0
    found: str = ""
    expected: str = ""


class Verdict(NamedTuple):
    """The answer to one requirement, with what it rests on and what to do about it."""

    requirement: str
    status: Status
    message: str
    evidence: tuple[Evidence, ...] = ()
    remedy: str = ""


APPLY = "run: tpu-image apply"
"""The remedy of all that ``apply`` satisfies."""

BUILD = "run: tpu-image build"
"""The same for what lies on a disk image, which is never changed in place."""


class Requirement:
    """One thing that a TPU image needs: the base of every entry of the catalogue.

    A subclass states its facts as class attributes and implements what it can: :meth:`inspect` (files of an
    image), :meth:`plan` (the changes that satisfy it), :meth:`observe` (a running machine).
    """

    id: str = ""
    """Stable, dotted, as printed in reports: ``kernel.thp``."""
    title: str = ""
    """What holds when it passes, as one sentence without a full stop."""
    why: str = ""
    """Why a TPU machine needs it."""
    source: str = ""
    """Where it comes from: section of the document, R number, or other public source."""
    changes: str = ""
    """What ``apply`` changes for it; empty where it only looks."""
    remedy: str = APPLY
    """What a user does about a failure, unless the verdict says better."""
    live: bool = False
    """Whether it is about a running machine (``observe``) rather than an image's files (``inspect``)."""

    def applies(self, profile: Profile) -> str:
        """Empty when the requirement applies to the profile, otherwise the reason why it does not."""
        del profile
        return ""

    def inspect(self, tree: Tree, profile: Profile) -> Verdict:
        """Judge the files of an image.

        A :class:`~tpu_image.trees.base.TreeError` or
        :class:`~tpu_image.formats.FormatError` that escapes becomes an ``unknown`` verdict.
        """
        raise NotImplementedError(self.id)

    def plan(self, overlay: Overlay, profile: Profile) -> None:
        """Write into the overlay what makes :meth:`inspect` pass; write nothing where it passes already."""

    def observe(self, tree: Tree, profile: Profile) -> Verdict:
        """Judge a running machine by its ``/proc``, ``/sys``, ``/dev`` and ``/run``, read as a tree."""
        raise NotImplementedError(self.id)

    def passed(self, message: str, *evidence: Evidence) -> Verdict:
        """Give the verdict that it holds."""
        return Verdict(self.id, Status.PASS, message, evidence)

    def failed(self, message: str, *evidence: Evidence, remedy: str = "") -> Verdict:
        """Give the verdict that it does not hold."""
        return Verdict(self.id, Status.FAIL, message, evidence, remedy or self.remedy)

    def warned(self, message: str, *evidence: Evidence, remedy: str = "") -> Verdict:
        """Give the verdict that the required part holds, with something to attend to."""
        return Verdict(self.id, Status.WARN, message, evidence, remedy or self.remedy)

    def skipped(self, reason: str) -> Verdict:
        """Give the verdict that it was not looked at, and why."""
        return Verdict(self.id, Status.SKIP, reason)

    def unknown(self, reason: str, *evidence: Evidence, remedy: str = "") -> Verdict:
        """Give the verdict that it cannot be decided from here, and what would decide it."""
        return Verdict(self.id, Status.UNKNOWN, reason, evidence, remedy)
