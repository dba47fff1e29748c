"""What can be known to fail is refused in one line before anything is written."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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
    with_private_mounts,
)
from plan_cases import CHANGES, NODES
from tpu_image.plan import JOURNAL, Change, Plan, apply, undo
from tpu_image.trees.base import TreeError
from tpu_image.trees.memory import Directory, File, Symlink

IMPORTED_BEFORE_RIGHTS_ARE_DROPPED = (base64, hashlib, json)


@pytest.fixture(autouse=True)
def root_user() -> None:
    need_root()


@pytest.fixture
def root() -> Iterator[Path]:
    with folder() as path:
        materialise(NODES, path)
        yield path


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


@pytest.mark.parametrize(
    "change", [lambda path: path.write_text("mine"), os.chmod, Path.unlink], ids=["write", "mode", "gone"]
)
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
        (Change(JOURNAL, None, File(b"")), "leads to the undo journal, so cannot be changed"),
        (Change("/var/lib", None, Symlink("x")), "leads to the undo journal, so cannot be changed"),
        (Change("/etc/\0", None, File(b"")), "cannot be read: stat: embedded null character in path"),
    ],
)
def test_a_plan_that_no_tree_can_take_is_refused(root: Path, change: Change, reason: str) -> None:
    assert refusal(Plan((change,)), root).endswith(reason)


def test_a_link_on_the_way_to_the_journal_stays(root: Path) -> None:
    (root / "srv").mkdir()
    (root / "var").symlink_to("srv")
    plan = Plan((Change("/var", Symlink("srv"), Symlink("usr")),))
    assert refusal(plan, root) == "/var: leads to the undo journal, so cannot be changed"


def test_a_path_is_not_changed_twice(root: Path) -> None:
    change = Change("/x", None, File(b""))
    assert refusal(Plan((change, change)), root) == "/x: is changed twice in one plan"


def test_a_plan_that_leads_through_a_link_is_refused(root: Path) -> None:
    with folder() as outside:
        (root / "out").symlink_to(outside)
        plan = Plan((Change("/out/file", None, File(b"")),))
        assert "cannot be entered: is reached through a symbolic link" in refusal(plan, root)
        assert list(outside.iterdir()) == []


FS_IOC_GETFLAGS, FS_IOC_SETFLAGS, FS_IMMUTABLE_FL, FS_APPEND_FL = (
    0x80086601,
    0x40086602,
    0x10,
    0x20,
)  # linux/fs.h


@contextlib.contextmanager
def flagged(path: Path, flag: int) -> Iterator[None]:
    """Set a flag beside those that the file system itself needs, as chattr(1) does."""
    descriptor = os.open(path, os.O_RDONLY)
    flags = fcntl.ioctl(descriptor, FS_IOC_GETFLAGS, bytes(8))
    fcntl.ioctl(descriptor, FS_IOC_SETFLAGS, struct.pack("L", struct.unpack("L", flags)[0] | flag))
    try:
        yield
    finally:
        fcntl.ioctl(descriptor, FS_IOC_SETFLAGS, flags)
        os.close(descriptor)


@pytest.mark.parametrize("flag", [FS_IMMUTABLE_FL, FS_APPEND_FL])
@pytest.mark.parametrize("path", ["etc/conf", "etc"])
def test_what_is_immutable_is_refused_by_name(root: Path, path: str, flag: int) -> None:
    with flagged(root / path, flag):
        assert refusal(CHANGES, root).startswith(f"/{path}: is immutable or append-only")


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
