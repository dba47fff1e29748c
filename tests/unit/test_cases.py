"""Every folder under ``tests/cases`` is one state met in the field and the verdicts it must get.

Adding a case needs no code: see ``tests/case_trees.py`` for what ``case.yaml`` may hold.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

import case_trees
from tpu_image import catalogue
from tpu_image.catalogue import readings
from tpu_image.catalogue.requirement import Verdict

FOLDERS = sorted(path.parent for path in case_trees.CASES.glob("*/case.yaml"))


def text_of(verdict: Verdict) -> str:
    """All that a report shows of a verdict."""
    places = [f"{e.path}:{e.line} {e.found} {e.expected}" for e in verdict.evidence]
    return "\n".join([verdict.message, *places, verdict.remedy])


def expectation(value: Any) -> dict[str, Any]:
    return {"status": value} if isinstance(value, str) else dict(value)


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_state_gets_its_verdicts(folder: Path) -> None:
    case, tree, live, profile = case_trees.load(folder)
    only = list(case["expect"])
    verdicts = {v.requirement: v for v in readings.check(tree, profile, live=live, only=only)}
    for requirement, value in case["expect"].items():
        wanted = expectation(value)
        verdict = verdicts[requirement]
        shown = text_of(verdict)
        assert verdict.status.value == wanted["status"], shown
        for mention in wanted.get("mentions", []):
            assert mention in shown
        for mention in wanted.get("silent_about", []):
            assert mention not in shown


@pytest.mark.slow
def test_every_requirement_is_seen_to_hold_and_not_to_hold() -> None:
    seen: dict[str, set[str]] = defaultdict(set)
    for folder in FOLDERS:
        case, *_ = case_trees.load(folder)
        for requirement, value in case["expect"].items():
            seen[requirement].add(expectation(value)["status"])
    lacking = {
        r.id: sorted(seen[r.id])
        for r in catalogue.requirements()
        if not seen[r.id] & {"pass", "warn"} or len(seen[r.id] - {"skip"}) < 2
    }
    assert not lacking, f"cases are missing a holding or a failing state for: {lacking}"


@pytest.mark.slow
def test_a_case_says_what_it_is_about() -> None:
    assert len(FOLDERS) >= 60
    for folder in FOLDERS:
        case, *_ = case_trees.load(folder)
        assert case["about"].strip(), folder.name
