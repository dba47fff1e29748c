"""A plan is written whole or not at all, and never anywhere but into its tree."""

from __future__ import annotations

import errno
import itertools
import json
import os
import struct
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disk_trees import (
    folder,
    materialise,
    mount,
    picture,
    read_nodes,
    swapped,
    trees,
    with_private_mounts,
)
from overlay_writes import Write, plan_of, writes
from plan_cases import CHANGES, NODES, STATE_DIRECTORIES
from tpu_image.plan import JOURNAL, Change, Plan, PlanError, apply, undo
from tpu_image.trees.base import TreeError
from tpu_image.trees.directory import DirectoryTree
from tpu_image.trees.memory import File, Node
from tpu_image.trees.overlay import Overlay

pytestmark = pytest.mark.usefixtures("root_user")


def without_journal(nodes: dict[str, Node]) -> dict[str, Node]:
    return {path: node for path, node in nodes.items() if not path.startswith(("/var", "/srv"))}


def again(root: Path, plan: Plan) -> Plan:
    """What a second plan of the same nodes is."""
    with DirectoryTree(root) as tree:
        overlay = Overlay(tree)
        overlay.written.update({change.path: change.after for change in plan.changes})
        return Plan.from_overlay(overlay)


@settings(max_examples=100, deadline=None)
@given(trees(), st.sampled_from(STATE_DIRECTORIES), st.lists(writes(), max_size=6))
def test_a_tree_becomes_what_the_overlay_says_and_undo_restores_it_to_the_bit(
    nodes: dict[str, Node], state: dict[str, Node], calls: list[Write]
) -> None:
    with folder(in_memory=True) as root:
        materialise(nodes | state, root)
        before = picture(root)
        plan = plan_of(root, calls)
        expected = nodes
        for call in calls:
            expected = call.on_nodes(expected)
        expected.pop("/", None)
        assert apply(plan, root).changed == plan.changes
        assert without_journal(read_nodes(root)) == expected
        assert again(root, plan) == Plan()
        assert undo(root).kept == ()
        assert picture(root) == before


def test_every_kind_of_change_is_made_and_taken_back(root: Path) -> None:
    before = picture(root)
    apply(CHANGES, root)
    after = {change.path: change.after for change in CHANGES.changes}
    found = read_nodes(root)
    assert {path: found.get(path) for path in after} == after
    assert (root / "var/lib/tpu-image/undo.json").stat().st_mode & 0o7777 == 0o600
    assert not list(root.rglob(".tpu-image-*"))
    undo(root)
    assert picture(root) == before


def test_nothing_to_change_writes_nothing(root: Path) -> None:
    status = root.stat()
    assert apply(Plan(), root).changed == ()
    assert root.stat() == status
    assert apply(Plan(), "/gone").changed == ()


def test_the_journal_is_on_the_disk_before_anything_changes(root: Path) -> None:
    def journal_is_there(step: str) -> None:
        if "/etc" in step:
            originals = json.loads((root / JOURNAL[1:]).read_bytes())["paths"]
            assert originals.keys() == {change.path for change in CHANGES.changes}
            assert f"sync {JOURNAL}" in " ".join(steps) or "sync directory /var/lib/tpu-image" in steps
        steps.append(step)

    steps: list[str] = []
    apply(CHANGES, root, on_step=journal_is_there)
    assert any("/etc" in step for step in steps)


# What a changed file keeps.


def access_control_list(user: int) -> bytes:
    """An access control list that lets one more user read (linux/posix_acl_xattr.h)."""
    entries = [(0x01, 6, -1), (0x02, 4, user), (0x04, 0, -1), (0x10, 4, -1), (0x20, 0, -1)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)


ATTRIBUTES = {
    "user.note": b"of the user\xff",
    "security.selinux": b"system_u:object_r:etc_t:s0\0",
    "system.posix_acl_access": access_control_list(1234),
}


def test_a_changed_file_keeps_its_extended_attributes_and_undo_restores_them(root: Path) -> None:
    for name, value in ATTRIBUTES.items():
        os.setxattr(root / "etc/conf", name, value)
    os.setxattr(root / "etc/link", "security.selinux", b"label\0", follow_symlinks=False)
    os.setxattr(root / "etc/conf", "security.ima", b"\x04signature of the old content")
    before = picture(root)
    assert oct(before["/etc/conf"][0]) == "0o100640"  # type: ignore[arg-type]
    apply(CHANGES, root)
    after = picture(root)
    assert after["/etc/conf"][4] == ATTRIBUTES
    assert after["/etc/link"][4] == {"security.selinux": b"label\0"}
    assert after["/etc/conf"][0] == before["/etc/conf"][0]
    undo(root)
    assert picture(root) == before


def test_a_default_access_control_list_gives_nothing_to_a_file_that_had_none(root: Path) -> None:
    before = picture(root)
    os.setxattr(root / "etc", "system.posix_acl_default", access_control_list(1234))
    apply(CHANGES, root)
    assert picture(root)["/etc/conf"][4] == {}
    undo(root)
    os.removexattr(root / "etc", "system.posix_acl_default")
    assert picture(root) == before


def test_a_new_mode_alone_keeps_the_time_of_the_content(root: Path) -> None:
    os.utime(root / "etc/private/key", ns=(1, 1_234_567_890_123_456_789))
    apply(CHANGES, root)
    assert (root / "etc/private/key").stat().st_mtime_ns == 1_234_567_890_123_456_789
    assert (root / "etc/conf").stat().st_mtime_ns > 1_700_000_000_000_000_000


# What fails in the middle.


def test_a_disk_that_fills_up_in_the_middle_leaves_the_tree_as_it_was(root: Path) -> None:
    def failed() -> str:
        mount(root, "size=1m")
        materialise(NODES, root)
        before = picture(root)
        plan = Plan((*CHANGES.changes[:9], Change("/zz", None, File(b"z" * 100_000))))

        def fill(step: str) -> None:
            if step == "stage /zz":
                with pytest.raises(OSError), (root / "filler").open("wb") as filler:
                    filler.write(bytes(2 << 20))

        with pytest.raises(PlanError) as raised:
            apply(plan, root, on_step=fill)
        (root / "filler").unlink()
        assert picture(root) == before
        return str(raised.value)

    assert with_private_mounts(failed) == "/zz: cannot be written: no space left on device"


@pytest.mark.slow
@pytest.mark.parametrize("state", STATE_DIRECTORIES)
@pytest.mark.parametrize("earlier", [False, True], ids=["first", "second"])
def test_a_failure_at_any_step_leaves_the_tree_as_it_was(state: dict[str, Node], earlier: bool) -> None:
    step, failed = 0, True
    while failed:
        with folder(in_memory=True) as root:
            materialise(NODES | state, root)
            if earlier:
                apply(Plan((Change("/before", None, File(b"before")),)), root)
            before = without_time_of_the_journal(picture(root))
            changes = Plan(tuple(change for change in CHANGES.changes if not change.path.startswith("/var")))
            failed = fails_at(step, changes, root)
            if failed:
                assert without_time_of_the_journal(picture(root)) == before, f"at step {step}"
        step += 1
    assert step > 25


def without_time_of_the_journal(seen: dict[str, tuple[object, ...]]) -> dict[str, tuple[object, ...]]:
    return {path: look[:-1] if path.endswith("undo.json") else look for path, look in seen.items()}


def fails_at(step: int, plan: Plan, root: Path) -> bool:
    """Apply on a system that refuses the n-th step; say whether there were so many."""
    steps: list[str] = []

    def refuse(name: str) -> None:
        steps.append(name)
        if len(steps) == step + 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    try:
        apply(plan, root, on_step=refuse)
    except PlanError as error:
        reason = error.reason
    else:
        return False
    assert "input/output error" in reason
    assert "undo" not in reason
    return True


def test_an_interrupt_takes_everything_back(root: Path) -> None:
    before = picture(root)

    def interrupt(step: str) -> None:
        if step == "rename /etc/conf":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        apply(CHANGES, root, on_step=interrupt)
    assert picture(root) == before


def test_a_file_changed_while_the_plan_is_written_is_kept_and_the_rest_taken_back(root: Path) -> None:
    before = picture(root)

    def change(step: str) -> None:
        if step == "stage /usr/new":
            (root / "etc/conf").write_text("mine\n")

    with pytest.raises(PlanError, match="/etc/conf: was changed by something else after the plan was made"):
        apply(CHANGES, root, on_step=change)
    assert (root / "etc/conf").read_text() == "mine\n"
    mine = picture(root)
    assert {**mine, "/etc/conf": before["/etc/conf"]} == before


def test_a_system_that_refuses_to_take_back_too_is_told_and_undo_helps(root: Path) -> None:
    before = picture(root)

    def refuse(step: str) -> None:
        if step in ("rename /etc/conf", "remove /usr"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(
        PlanError, match=r"/etc/conf: .*error; taking the changes back failed too \(/usr: .*run undo"
    ):
        apply(CHANGES, root, on_step=refuse)
    undo(root)
    assert picture(root) == before


# Others at the same time.


def test_two_never_write_at_the_same_time(root: Path) -> None:
    def other(step: str) -> None:
        if step == "rename /etc/conf":
            for attempt in (lambda: apply(CHANGES, root), lambda: undo(root)):
                with pytest.raises(
                    PlanError, match="is being changed by another tpu-image; wait until it ends"
                ):
                    attempt()
            tried.append(step)

    tried: list[str] = []
    apply(CHANGES, root, on_step=other)
    assert tried
    undo(root)


def test_a_race_with_somebody_who_swaps_a_directory_for_a_link_never_leads_out(root: Path) -> None:
    with folder() as outside:
        (outside / "conf").write_text("outside\n")
        before = picture(outside)
        outcomes: set[str] = set()
        with swapped(root / "etc", outside):
            deadline = time.monotonic() + 30
            tries = itertools.count()
            while (next(tries) < 60 or len(outcomes) < 2) and time.monotonic() < deadline:
                outcomes.add(attempt(root))
        assert picture(outside) == before
        assert len(outcomes) > 1, "there was no race"


def attempt(root: Path) -> str:
    """Apply and undo while somebody interferes."""
    try:
        with DirectoryTree(root) as tree:
            overlay = Overlay(tree)
            overlay.write("/etc/conf", "new\n")
            overlay.write("/etc/new", "new\n")
            apply(Plan.from_overlay(overlay), root)
        undo(root, force=True)
    except TreeError as error:
        return error.reason
    return "done"
