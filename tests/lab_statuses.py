"""Reading the verdicts of a boot."""

from __future__ import annotations

from tpu_image.catalogue.requirement import Status, Verdict
from tpu_image.lab.result import BootResult


def having(result: BootResult, *wanted: Status) -> set[str]:
    """The requirements whose verdict has one of these statuses."""
    return {verdict.requirement for verdict in result.verdicts if verdict.status in wanted}


def wrong(result: BootResult) -> dict[str, str]:
    """What keeps the image from being good: requirements, and what is said of them."""
    return {v.requirement: v.message for v in result.verdicts if v.status in (Status.FAIL, Status.UNKNOWN)}


def verdict(result: BootResult, requirement: str) -> Verdict:
    """The verdict on a requirement."""
    return next(found for found in result.verdicts if found.requirement == requirement)


def output(result: BootResult, number: int = 0) -> str:
    """What a command given with ``--run`` printed; it succeeded."""
    run = result.guest.run[number]
    assert run.status == 0, run
    return run.output
