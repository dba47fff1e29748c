"""From a target to a report, and from a report to text in the format that was asked for."""

from __future__ import annotations

from collections.abc import Sequence

from tpu_image import catalogue
from tpu_image.catalogue import readings
from tpu_image.catalogue.requirement import Profile
from tpu_image.cli.target import Target
from tpu_image.report.model import Report

FORMATS = ("text", "json", "junit", "sarif")


def inspect(target: Target, profile: Profile, only: Sequence[str] = ()) -> Report:
    """Check a target.

    Raises:
        UnknownRequirementError: ``only`` names a requirement that does not exist.
    """
    verdicts = readings.check(target.tree, profile, live=target.live, only=only)
    return Report(
        target.name,
        profile,
        verdicts,
        readings.holds(verdicts),
        catalogue.requirements(),
        target.root,
    )


def render(report: Report, form: str, *, color: bool = False, quiet: bool = False) -> str:
    """Write a report in one of :data:`FORMATS`, with only its module loaded."""
    if form == "json":
        from tpu_image.report import json

        return json.render(report)
    if form == "junit":
        from tpu_image.report import junit

        return junit.render(report)
    if form == "sarif":
        from tpu_image.report import sarif

        return sarif.render(report)
    from tpu_image.report import text

    return text.render(report, color=color, quiet=quiet)
