"""A plan on a real Debian root: read, applied, completed after a kill, taken back."""

from __future__ import annotations

import posixpath
from pathlib import Path

import pytest

from disk_trees import dies_at, picture
from tpu_image.plan import JOURNAL, Plan, apply, undo
from tpu_image.trees.directory import DirectoryTree
from tpu_image.trees.overlay import Overlay

pytestmark = pytest.mark.real

ACCOUNT = b"tpu-runtime:!:::::::\n"
UNIT = "/usr/lib/systemd/system/tpu.service"


def plan_for(root: Path) -> Plan:
    """Changes like those of the catalogue: new files and directories, an edited file, a link, a path through one."""
    with DirectoryTree(root) as tree:
        overlay = Overlay(tree)
        for name in (
            "udev/rules.d/99-tpu.rules",
            "default/grub.d/99-tpu.cfg",
            "systemd/system/a.service.d/b.conf",
        ):
            overlay.write(f"/etc/{name}", f"# {name}\n")
        overlay.write("/lib/udev/bind_to_vfio_pci.sh", "#!/bin/sh\n", mode=0o755)
        overlay.symlink("/etc/systemd/system/multi-user.target.wants/tpu.service", UNIT)
        overlay.write("/etc/shadow", tree.read_bytes("/etc/shadow").replace(ACCOUNT, b"") + ACCOUNT)
        return Plan.from_overlay(overlay)


def test_a_real_root_is_changed_where_planned_alone_and_comes_back_to_the_bit(debian_root: Path) -> None:
    before = picture(debian_root)
    plan = plan_for(debian_root)
    assert "/usr/lib/udev/bind_to_vfio_pci.sh" in [change.path for change in plan.changes]

    apply(plan, debian_root)
    after = picture(debian_root)
    differing = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert differing == {*(change.path for change in plan.changes), JOURNAL, posixpath.dirname(JOURNAL)}
    assert after["/etc/shadow"][:3] == before["/etc/shadow"][:3]
    assert plan_for(debian_root) == Plan()

    assert undo(debian_root).kept == ()
    assert picture(debian_root) == before


@pytest.mark.parametrize("step", ["stage /etc/shadow", "rename /etc/shadow"])
def test_a_real_root_survives_a_kill(debian_root: Path, step: str) -> None:
    before = picture(debian_root)
    steps: list[str] = []
    apply(plan_for(debian_root), debian_root, on_step=steps.append)
    undo(debian_root)

    plan = plan_for(debian_root)
    assert dies_at(steps.index(step), lambda on_step: apply(plan, debian_root, on_step=on_step))
    apply(plan_for(debian_root), debian_root)
    assert plan_for(debian_root) == Plan()
    assert undo(debian_root).kept == ()
    assert picture(debian_root) == before
