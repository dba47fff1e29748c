"""The loops over the catalogue: what check and apply are, with nothing about TPUs in them."""

from __future__ import annotations

from collections.abc import Sequence

from tpu_image import catalogue
from tpu_image.catalogue.requirement import APPLY, BUILD, Evidence, Profile, Requirement, Status, Verdict
from tpu_image.formats import FormatError
from tpu_image.trees.base import Tree, TreeError
from tpu_image.trees.overlay import Overlay


def check(
    tree: Tree, profile: Profile, *, live: Tree | None = None, only: Sequence[str] = ()
) -> list[Verdict]:
    """Judge every selected requirement: of images by ``tree``, of machines by ``live`` (None: none runs).

    Raises:
        UnknownRequirementError: ``only`` or a waiver names a requirement that does not exist.
    """
    for waived in profile.waivers:
        catalogue.find(waived)
    return [judge(requirement, tree, profile, live) for requirement in catalogue.select(only)]


def judge(requirement: Requirement, tree: Tree, profile: Profile, live: Tree | None) -> Verdict:
    """Give the one verdict of a requirement; what cannot be read or parsed makes it ``unknown``."""
    reason = why_not(requirement, profile)
    if reason:
        return requirement.skipped(reason)
    if requirement.live and live is None:
        return requirement.skipped("only a running machine shows it: run tpu-image check there")
    try:
        if requirement.live and live is not None:
            return requirement.observe(live, profile)
        return _for_disk(requirement.inspect(tree, profile), tree)
    except TreeError as error:
        return requirement.unknown(
            f"{error.path} {error.reason}",
            Evidence(error.path, found=error.reason),
            remedy="make the file readable and of ordinary size, then check again",
        )
    except FormatError as error:
        return requirement.unknown(str(error), remedy="correct the file, then check again")


def _for_disk(verdict: Verdict, tree: Tree) -> Verdict:
    """Name the command that changes a disk image where the files are on one."""
    if tree.faults is None or verdict.remedy != APPLY:
        return verdict
    return verdict._replace(remedy=BUILD)


def why_not(requirement: Requirement, profile: Profile) -> str:
    """Say why a requirement is not to be looked at under this profile; empty where it is."""
    if requirement.id in profile.waivers:
        return f"waived: {profile.waivers[requirement.id]}"
    return requirement.applies(profile)


def plan(tree: Tree, profile: Profile, *, only: Sequence[str] = ()) -> Overlay:
    """Write over the tree what would satisfy every selected requirement that applies.

    Raises:
        TreeError: a file that must be changed cannot be read, or something else stands in its place.
        FormatError: a file that must be changed does not parse.
        UnknownRequirementError: ``only`` names a requirement that does not exist.
    """
    overlay = Overlay(tree)
    for requirement in catalogue.select(only):
        if not requirement.live and not why_not(requirement, profile):
            requirement.plan(overlay, profile)
    return overlay


def holds(verdicts: Sequence[Verdict]) -> bool:
    """Whether the target may be used: nothing fails or is undecided, and at least one thing holds."""
    statuses = {verdict.status for verdict in verdicts}
    return not statuses & {Status.FAIL, Status.UNKNOWN} and Status.PASS in statuses
