"""Whatever was applied, and wherever it was cut off, undo brings back what was there before."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disk_trees import (
    dies_at,
    folder,
    materialise,
    picture,
    read_nodes,
    trees,
)
from overlay_writes import Write, plan_of, writes
from plan_cases import NODES, STATE_DIRECTORIES, change, write_everything, write_more
from tpu_image.plan import Kept, Undone, apply, undo
from tpu_image.trees.base import READ_LIMIT, TreeError
from tpu_image.trees.memory import Node

pytestmark = pytest.mark.usefixtures("root_user")


def nodes_without_journal(root: Path) -> dict[str, Node]:
    return {path: node for path, node in read_nodes(root).items() if not path.endswith("undo.json")}


# Being killed.


@pytest.mark.slow
@pytest.mark.parametrize("state", STATE_DIRECTORIES)
def test_killed_at_any_step_an_apply_can_be_completed_and_taken_back(state: dict[str, Node]) -> None:
    with folder(in_memory=True) as root:
        materialise(NODES | state, root)
        change(root, write_everything)
        expected = nodes_without_journal(root)
    step, died = 0, True
    while died:
        with folder(in_memory=True) as root:
            materialise(NODES | state, root)
            before = picture(root)
            died = dies_at(step, lambda on_step: change(root, write_everything, on_step))
            change(root, write_everything)
            assert nodes_without_journal(root) == expected, f"after step {step}"
            assert undo(root).kept == ()
            assert picture(root) == before, f"after step {step}"
        step += 1
    assert step > 35


@pytest.mark.slow
@pytest.mark.parametrize("state", STATE_DIRECTORIES)
@pytest.mark.parametrize("earlier", [False, True], ids=["first", "second"])
def test_killed_at_any_step_an_apply_can_be_taken_back_at_once(state: dict[str, Node], earlier: bool) -> None:
    step, died = 0, True
    while died:
        with folder(in_memory=True) as root:
            materialise(NODES | state, root)
            before = picture(root)
            if earlier:
                change(root, write_everything)
            died = dies_at(step, lambda on_step: change(root, write_more, on_step))
            assert undo(root).kept == (), f"after step {step}"
            assert picture(root) == before, f"after step {step}"
        step += 1
    assert step > 15


@pytest.mark.slow
@pytest.mark.parametrize("state", STATE_DIRECTORIES)
def test_killed_at_any_step_an_undo_can_be_run_again(state: dict[str, Node]) -> None:
    step, died = 0, True
    while died:
        with folder(in_memory=True) as root:
            materialise(NODES | state, root)
            before = picture(root)
            change(root, write_everything)
            change(root, write_more)
            died = dies_at(step, lambda on_step: undo(root, on_step=on_step))
            assert undo(root).kept == (), f"after step {step}"
            assert picture(root) == before, f"after step {step}"
        step += 1
    assert step > 30


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(STATE_DIRECTORIES), st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=5))
def test_killed_again_and_again_the_tree_still_comes_back(
    state: dict[str, Node], runs: list[tuple[bool, int]]
) -> None:
    with folder(in_memory=True) as root:
        materialise(NODES | state, root)
        before = picture(root)
        for undoing, step in runs:
            if undoing:
                dies_at(step, lambda on_step: undo(root, on_step=on_step))
            else:
                dies_at(step, lambda on_step: change(root, write_more, on_step))
        assert undo(root).kept == ()
        assert picture(root) == before


# Several applies.


@settings(max_examples=60, deadline=None)
@given(trees(), st.lists(st.lists(writes(), max_size=3), max_size=3))
def test_the_first_original_is_restored_after_any_applies(
    nodes: dict[str, Node], rounds: list[list[Write]]
) -> None:
    with folder(in_memory=True) as root:
        materialise(nodes, root)
        before = picture(root)
        for calls in rounds:
            apply(plan_of(root, calls), root)
        assert undo(root).kept == ()
        assert picture(root) == before


def test_undo_names_what_it_restored_and_a_second_one_has_nothing_to_do(root: Path) -> None:
    plan = change(root, write_everything)
    removed = frozenset(change.path for change in plan.changes if change.before is None)
    assert removed
    assert undo(root) == Undone(tuple(change.path for change in plan.changes), (), removed)
    before = picture(root)
    assert undo(root) == Undone()
    assert picture(root) == before


def test_undo_needs_a_root(tmp_path: Path) -> None:
    with pytest.raises(TreeError, match="gone: does not exist"):
        undo(tmp_path / "gone")


# What somebody else changed since.


def overwrite(root: Path) -> None:
    (root / "etc/conf").write_text("mine\n")


def forbid(root: Path) -> None:
    (root / "etc/conf").chmod(0o600)


def delete(root: Path) -> None:
    (root / "etc/conf").unlink()


def make_link(root: Path) -> None:
    (root / "etc/conf").unlink()
    (root / "etc/conf").symlink_to("gone")


def make_pipe(root: Path) -> None:
    (root / "etc/conf").unlink()
    os.mkfifo(root / "etc/conf")


def make_huge(root: Path) -> None:
    os.truncate(root / "etc/conf", READ_LIMIT + 1)


@pytest.mark.parametrize("interfere", [overwrite, forbid, delete, make_link, make_pipe, make_huge])
def test_what_somebody_changed_since_is_kept_and_named_until_undo_is_forced(
    root: Path, interfere: Callable[[Path], None]
) -> None:
    before = picture(root)
    change(root, write_everything)
    interfere(root)
    changed = picture(root).get("/etc/conf")

    for _ in range(2):
        undone = undo(root)
        assert [kept.path for kept in undone.kept] == ["/etc/conf"]
        assert picture(root).get("/etc/conf") == changed
        rest = {path: look for path, look in picture(root).items() if not path.startswith("/var")}
        assert {**rest, "/etc/conf": before["/etc/conf"]} == before

    assert undo(root, force=True) == Undone(("/etc/conf",), ())
    assert picture(root) == before


def test_a_reason_is_given_for_what_is_kept(root: Path) -> None:
    change(root, write_everything)
    overwrite(root)
    assert undo(root).kept == (Kept("/etc/conf", "was changed by something else since"),)


def test_what_somebody_put_back_by_hand_is_nothing_to_undo(root: Path) -> None:
    change(root, write_everything)
    (root / "etc/conf").write_bytes(b"old\n")
    assert undo(root).kept == ()
    assert not (root / "var").exists()


def test_a_made_directory_that_holds_something_of_others_stays(root: Path) -> None:
    change(root, write_everything)
    (root / "usr/lib/mine").touch()
    assert undo(root).kept == ()
    assert sorted(os.listdir(root / "usr/lib")) == ["mine"]
    assert not (root / "var").exists()


def test_directories_of_the_journal_that_hold_something_of_others_stay(root: Path) -> None:
    change(root, write_everything)
    (root / "var/mine").touch()
    undo(root)
    assert sorted(os.listdir(root / "var")) == ["mine"]


def test_a_made_directory_goes_with_the_kept_file_in_it_when_undo_is_forced(root: Path) -> None:
    before = picture(root)
    change(root, write_everything)
    (root / "usr/lib/new").write_text("mine")
    assert [kept.path for kept in undo(root).kept] == ["/usr/lib/new"]
    undo(root, force=True)
    assert picture(root) == before


def test_what_cannot_be_reached_any_more_is_kept_even_by_force(root: Path) -> None:
    change(root, write_everything)
    with folder() as outside:
        (root / "etc").rename(root / "moved")
        (root / "etc").symlink_to(outside)
        for force in (False, True):
            kept = undo(root, force=force).kept
            assert "/etc/conf" in [one.path for one in kept]
            assert "is reached through a symbolic link" in kept[0].reason
            assert list(outside.iterdir()) == []


def test_a_directory_in_the_place_of_a_link_stays_with_what_others_put_in_it(root: Path) -> None:
    change(root, write_everything)
    (root / "etc/conf.d/mine").touch()
    assert [kept.path for kept in undo(root, force=True).kept] == ["/etc/conf.d"]
    (root / "etc/conf.d/mine").unlink()
    undo(root)
    assert os.readlink(root / "etc/conf.d") == "elsewhere"
