"""What holds for every entry of the catalogue."""

from __future__ import annotations

import pytest

from tpu_image import catalogue
from tpu_image.catalogue.requirement import Requirement


@pytest.mark.parametrize("requirement", catalogue.requirements(), ids=lambda requirement: requirement.id)
def test_a_remedy_promises_no_more_than_apply_changes(requirement: Requirement) -> None:
    assert requirement.live or requirement.changes or "tpu-image apply" not in requirement.remedy


@pytest.mark.parametrize("requirement", catalogue.requirements(), ids=lambda requirement: requirement.id)
def test_what_explain_shows_is_written_alike(requirement: Requirement) -> None:
    assert not requirement.title.endswith(".")
    assert requirement.why.endswith(".")
    assert '"' not in requirement.source, "sections stand in “…”"
