"""A plan is written whole or not at all, and never anywhere but into its tree."""

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import hashlib
import json
import os
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disk_trees import (
    MS_RDONLY,
    MS_REMOUNT,
    NOBODY,
    as_nobody,
    folder,
    materialise,
    mount,
    need_root,
    picture,
    read_nodes,
    trees,
    with_private_mounts,
)
from overlay_writes import Write, plan_of, writes
from tpu_image.plan import JOURNAL, Change, Plan, PlanError, apply, undo
from tpu_image.trees.base import TreeError
from tpu_image.trees.directory import DirectoryTree
from tpu_image.trees.memory import Directory, File, Node, Symlink
from tpu_image.trees.overlay import Overlay

IMPORTED_BEFORE_RIGHTS_ARE_DROPPED = (base64, hashlib, json)

STATE_DIRECTORIES: list[dict[str, Node]] = [
    {},
    {"/var": Directory()},
    {"/var": Directory(), "/var/lib": Directory(0o711)},
    {"/var": Directory(), "/var/lib": Directory(), "/var/lib/tpu-image": Directory(0o700)},
    {"/srv": Directory(), "/var": Symlink("srv")},
]
"""What a tree may have of the directories that hold the journal."""


@pytest.fixture(autouse=True)
def root_user() -> None:
    need_root()


@pytest.fixture
def root() -> Iterator[Path]:
    with folder() as path:
        materialise(NODES, path)
        yield path


NODES: dict[str, Node] = {
    "/etc": Directory(),
    "/etc/conf": File(b"old\n", 0o640, 1, 2),
    "/etc/conf.d": Symlink("elsewhere"),
    "/etc/gone": File(b"gone\n"),
    "/etc/link": Symlink("conf"),
    "/etc/private": Directory(0o755),
    "/etc/private/key": File(b"key\n", 0o600),
}

CHANGES = Plan(
    (
        Change("/etc/conf", NODES["/etc/conf"], File(b"new\n", 0o640, 1, 2)),
        Change("/etc/conf.d", NODES["/etc/conf.d"], Directory(0o750, 1, 2)),
        Change("/etc/conf.d/new", None, File(b"new\n", 0o600)),
        Change("/etc/gone", NODES["/etc/gone"], None),
        Change("/etc/link", NODES["/etc/link"], Symlink("private/key")),
        Change("/etc/private", NODES["/etc/private"], Directory(0o700, 1, 1)),
        Change("/etc/private/key", NODES["/etc/private/key"], File(b"key\n", 0o400)),
        Change("/usr", None, Directory()),
        Change("/usr/new", None, File(b"", 0o755)),
        Change("/var", None, Directory()),
        Change("/var/lib", None, Directory(0o711)),
        Change("/var/lib/state", None, File(b"state\n")),
    )
)
"""Every kind of change, the journal's own directories among them."""


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


# What fails before anything is written.


def refusal(plan: Plan, root: Path) -> str:
    """What is said where a plan is refused; nothing must have changed then."""
    before = picture(root)
    steps: list[str] = []
    with pytest.raises(TreeError) as raised:
        apply(plan, root, on_step=steps.append)
    assert steps == [], "something was written"
    assert picture(root) == before
    return str(raised.value)


def refused(plan: Plan, root: Path) -> str:
    with pytest.raises(TreeError) as raised:
        apply(plan, root)
    return str(raised.value)


def test_a_root_that_is_none_is_refused(root: Path) -> None:
    with pytest.raises(TreeError, match="gone: does not exist"):
        apply(CHANGES, root / "gone")
    with pytest.raises(TreeError, match="conf: is not a directory"):
        apply(CHANGES, root / "etc/conf")


@pytest.mark.parametrize("change", [lambda path: path.write_text("mine"), os.chmod, Path.unlink], ids=str)
def test_what_changed_after_the_plan_was_made_is_not_overwritten(
    root: Path, change: Callable[..., object]
) -> None:
    change(root / "etc/conf", 0o666) if change is os.chmod else change(root / "etc/conf")
    assert refusal(CHANGES, root) == (
        "/etc/conf: was changed by something else after the plan was made; plan again"
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (Change("etc/x", None, File(b"")), "is not the canonical path of something below the root"),
        (Change("/etc/../../x", None, File(b"")), "is not the canonical path of something below the root"),
        (Change("/", Directory(), Directory(0o700)), "is not the canonical path of something below the root"),
        (Change("/etc", Directory(), None), "is a directory; only files and links are removed or replaced"),
        (
            Change("/etc", Directory(), File(b"")),
            "is a directory; only files and links are removed or replaced",
        ),
        (Change(JOURNAL, None, File(b"")), "holds the undo journal, so cannot be changed"),
        (Change("/var/lib", None, Symlink("x")), "holds the undo journal, so cannot be changed"),
        (Change("/etc/\0", None, File(b"")), "cannot be read: stat: embedded null character in path"),
    ],
)
def test_a_plan_that_no_tree_can_take_is_refused(root: Path, change: Change, reason: str) -> None:
    assert refusal(Plan((change,)), root).endswith(reason)


def test_a_path_is_not_changed_twice(root: Path) -> None:
    change = Change("/x", None, File(b""))
    assert refusal(Plan((change, change)), root) == "/x: is changed twice in one plan"


def test_a_plan_that_leads_through_a_link_is_refused(root: Path) -> None:
    with folder() as outside:
        (root / "out").symlink_to(outside)
        plan = Plan((Change("/out/file", None, File(b"")),))
        assert "cannot be entered: is reached through a symbolic link" in refusal(plan, root)
        assert list(outside.iterdir()) == []


FS_IOC_SETFLAGS, FS_IMMUTABLE_FL, FS_APPEND_FL = 0x40086602, 0x10, 0x20  # linux/fs.h


@pytest.mark.parametrize("flag", [FS_IMMUTABLE_FL, FS_APPEND_FL])
@pytest.mark.parametrize("path", ["etc/conf", "etc"])
def test_what_is_immutable_is_refused_by_name(root: Path, path: str, flag: int) -> None:
    descriptor = os.open(root / path, os.O_RDONLY)
    fcntl.ioctl(descriptor, FS_IOC_SETFLAGS, struct.pack("L", flag))
    try:
        assert refusal(CHANGES, root).startswith(f"/{path}: is immutable or append-only")
    finally:
        fcntl.ioctl(descriptor, FS_IOC_SETFLAGS, struct.pack("L", 0))
        os.close(descriptor)


def test_a_user_who_is_not_root_gives_nothing_away() -> None:
    with folder() as root:
        os.chown(root, NOBODY, NOBODY)
        said = as_nobody(lambda: refusal(Plan((Change("/x", None, File(b"")),)), root))
        assert said == "/x: is to belong to 0:0, which only root can do; run as root"


def test_a_user_who_is_not_root_changes_what_is_theirs() -> None:
    with folder() as root:
        materialise({"/x": File(b"old", 0o600, NOBODY, NOBODY)}, root)
        os.chown(root, NOBODY, NOBODY)
        before = picture(root)
        mine = File(b"new", 0o600, NOBODY, NOBODY)
        plan = Plan((Change("/x", File(b"old", 0o600, NOBODY, NOBODY), mine),))
        as_nobody(lambda: apply(plan, root))
        assert read_nodes(root)["/x"] == mine
        as_nobody(lambda: undo(root))
        assert picture(root) == before


def test_a_directory_that_may_not_be_written_to_is_refused() -> None:
    with folder() as root:
        plan = Plan((Change("/x", None, File(b"", 0o644, NOBODY, NOBODY)),))
        assert as_nobody(lambda: refusal(plan, root)) == "/: cannot be written to: permission denied"


def test_a_file_that_may_not_be_read_is_refused() -> None:
    with folder() as root:
        materialise({"/x": File(b"", 0o600)}, root)
        os.chown(root, NOBODY, NOBODY)
        before = picture(root)
        plan = Plan((Change("/x", File(b"", 0o600), File(b"x", 0o600, NOBODY, NOBODY)),))
        assert as_nobody(lambda: refused(plan, root)) == "/x: cannot be read: permission denied"
        assert picture(root) == before


def test_a_read_only_root_is_refused(root: Path) -> None:
    def refused() -> str:
        mount(root, "")
        materialise(NODES, root)
        mount(root, "", MS_REMOUNT | MS_RDONLY)
        return refusal(CHANGES, root)

    assert with_private_mounts(refused).endswith("is on a read-only file system")


def test_a_disk_without_the_room_is_refused(root: Path) -> None:
    def refused() -> str:
        mount(root, "size=128k")
        return refusal(Plan((Change("/big", None, File(b"x" * 200_000)),)), root)

    assert with_private_mounts(refused).startswith("/: has no room for the changes: 20")


def test_a_disk_without_inodes_is_refused(root: Path) -> None:
    def refused() -> str:
        mount(root, "nr_inodes=4")
        return refusal(Plan(tuple(Change(f"/{n}", None, File(b"")) for n in range(9))), root)

    assert "inodes needed" in with_private_mounts(refused)


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


def swap_until(over: threading.Event, directory: Path, outside: Path) -> None:
    moved = directory.with_name("moved")
    while not over.is_set():
        with contextlib.suppress(OSError):  # it may be made anew while it is away
            directory.rename(moved)
            directory.symlink_to(outside)
            directory.unlink()
            moved.rename(directory)


def test_a_race_with_somebody_who_swaps_a_directory_for_a_link_never_leads_out(root: Path) -> None:
    with folder() as outside:
        (outside / "conf").write_text("outside\n")
        before = picture(outside)
        over = threading.Event()
        swapping = threading.Thread(target=swap_until, args=(over, root / "etc", outside))
        swapping.start()
        outcomes = set()
        try:
            for n in range(60):
                outcomes.add(attempt(n, root))
        finally:
            over.set()
            swapping.join()
        assert picture(outside) == before
        assert len(outcomes) > 1, "there was no race"


def attempt(n: int, root: Path) -> str:
    """Apply and undo while somebody interferes."""
    try:
        with DirectoryTree(root) as tree:
            overlay = Overlay(tree)
            overlay.write("/etc/conf", f"{n}\n")
            overlay.write("/etc/new", f"{n}\n")
            apply(Plan.from_overlay(overlay), root)
        undo(root, force=True)
    except TreeError as error:
        return error.reason
    return "done"
