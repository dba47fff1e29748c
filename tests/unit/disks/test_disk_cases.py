"""Every folder under ``tests/disks`` is one kind of disk, and the verdicts or the refusal it must get.

Adding a kind needs no code: see ``tests/disk_cases.py`` for what ``case.yaml`` may hold.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import disk_cases
from tpu_image.catalogue import readings
from tpu_image.catalogue.requirement import Profile
from tpu_image.disks.errors import DiskError
from tpu_image.disks.image import open_image
from tpu_image.disks.objections import open_system

FOLDERS = sorted(path.parent for path in disk_cases.DISKS.glob("*/case.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_disk_gets_its_verdicts_or_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    case = disk_cases.load(folder)
    image = disk_cases.make(case, tmp_path)
    if "refused" in case:
        with pytest.raises(DiskError) as caught, open_image(image) as source:
            open_system(source)
        assert case["refused"] in str(caught.value)
        assert "\n" not in str(caught.value)
        return
    with open_image(image) as source:
        tree = open_system(source)
        found = {v.requirement: v for v in readings.check(tree, Profile(), only=list(case["expect"]))}
        for requirement, value in case["expect"].items():
            wanted = {"status": value} if isinstance(value, str) else value
            verdict = found[requirement]
            shown = f"{verdict.message} {verdict.evidence}"
            assert verdict.status.value == wanted["status"], shown
            assert all(mention in shown for mention in wanted.get("mentions", [])), shown
