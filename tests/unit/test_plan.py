"""A plan holds what really differs, and is shown as it is, whatever the files hold."""

from __future__ import annotations

import contextlib
import hashlib
import subprocess
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disk_trees import folder, trees
from overlay_writes import Write, writes
from tpu_image.plan import Change, Plan
from tpu_image.trees.base import TreeError
from tpu_image.trees.memory import Directory, File, MemoryTree, Node, Symlink
from tpu_image.trees.overlay import Overlay

# Planning.


def test_only_what_really_differs_is_a_change() -> None:
    overlay = Overlay(
        MemoryTree({"/same": File(b"x"), "/mode": File(b"x"), "/link": Symlink("a"), "/dir": Directory()})
    )
    overlay.write("/same", "x")
    overlay.write("/mode", "x", mode=0o600)
    overlay.symlink("/link", "a")
    overlay.make_directory("/dir")
    overlay.write("/new/file", "")
    overlay.write("/brief", "")
    overlay.remove("/brief")
    assert [change.path for change in Plan.from_overlay(overlay).changes] == ["/mode", "/new", "/new/file"]


@given(trees(), st.lists(writes(), max_size=6))
def test_directories_come_before_what_is_in_them(nodes: dict[str, Node], calls: list[Write]) -> None:
    overlay = Overlay(MemoryTree(nodes))
    for call in calls:
        with contextlib.suppress(TreeError):
            call.on_overlay(overlay)
    paths = [change.path for change in Plan.from_overlay(overlay).changes]
    for n, path in enumerate(paths):
        assert not any(path.startswith(f"{later}/") for later in paths[n:])


def test_a_summary_says_each_change_in_a_line() -> None:
    plan = Plan(
        (
            Change("/a", None, File(b"12345", 0o600, 1, 2)),
            Change("/b", File(b""), File(b"x", 0o755)),
            Change("/c", File(b""), None),
            Change("/d", Symlink("old"), Symlink("new\x1b[31m")),
            Change("/e", Symlink("old"), Directory()),
            Change("/f\n", None, Symlink("x")),
        )
    )
    assert plan.summary().splitlines() == [
        "create /a (regular file, mode 0600, owner 1:2, 5 bytes)",
        "change /b (content, mode 0644 -> 0755)",
        "remove /c",
        "change /d (target old -> new\\x1b[31m)",
        "replace /e (symbolic link -> directory, mode 0755)",
        "create /f\\n (symbolic link to x)",
    ]


# Showing.


def test_a_diff_shows_content_mode_and_owner() -> None:
    change = Change("/etc/x", File(b"a\nb\nc\n"), File(b"a\nB\nc", 0o755, 1, 2))
    assert Plan((change,)).diff().splitlines() == [
        "diff --git a/etc/x b/etc/x",
        "old mode 100644",
        "new mode 100755",
        "old owner 0:0",
        "new owner 1:2",
        "--- a/etc/x",
        "+++ b/etc/x",
        "@@ -1,3 +1,3 @@",
        " a",
        "-b",
        "-c",
        "+B",
        "+c",
        "\\ No newline at end of file",
    ]


def test_a_diff_shows_files_links_and_directories_that_come_and_go() -> None:
    plan = Plan(
        (
            Change("/d", None, Directory(0o750)),
            Change("/d/l", Symlink("a"), Symlink("b")),
            Change("/e", None, File(b"")),
            Change("/g", File(b"x\n"), None),
            Change("/k", Symlink("a"), File(b"y\n")),
        )
    )
    assert plan.diff().splitlines() == [
        *("diff --git a/d b/d", "new file mode 040750"),
        *("diff --git a/d/l b/d/l", "--- a/d/l", "+++ b/d/l", "@@ -1,1 +1,1 @@"),
        *("-a", "\\ No newline at end of file", "+b", "\\ No newline at end of file"),
        *("diff --git a/e b/e", "new file mode 100644"),
        *(
            "diff --git a/g b/g",
            "deleted file mode 100644",
            "--- a/g",
            "+++ /dev/null",
            "@@ -1,1 +0,0 @@",
            "-x",
        ),
        *("diff --git a/k b/k", "deleted file mode 120000", "--- a/k", "+++ /dev/null", "@@ -1,1 +0,0 @@"),
        *("-a", "\\ No newline at end of file"),
        *("diff --git a/k b/k", "new file mode 100644", "--- /dev/null", "+++ b/k", "@@ -0,0 +1,1 @@", "+y"),
    ]


def test_binary_content_is_shown_by_size_and_digest() -> None:
    shown = Plan((Change("/b", File(b"\0"), File(b"\0\1")),)).diff()
    before, after = hashlib.sha256(b"\0").hexdigest(), hashlib.sha256(b"\0\1").hexdigest()
    assert shown.splitlines()[1:] == [
        f"Binary files a/b and b/b differ: 1 bytes sha256:{before} -> 2 bytes sha256:{after}"
    ]


@given(st.binary(max_size=60), st.binary(max_size=60), st.text(max_size=8))
def test_a_diff_can_be_printed_whatever_the_files_hold(before: bytes, after: bytes, name: str) -> None:
    path = "/" + name.replace("/", "")
    plan = Plan((Change(path, File(before), File(after)), Change(path, Symlink(name or "x"), Symlink("y"))))
    for shown in (plan.diff(), plan.summary()):
        shown.encode("utf-8")
        assert all(line.replace("\t", "").isprintable() for line in shown.split("\n"))


def texts() -> st.SearchStrategy[bytes]:
    lines = st.lists(st.sampled_from([b"a", b"b", b"linux /vmlinuz quiet", b"", b"\ttab"]), max_size=30)
    return st.builds(lambda content, end: b"\n".join(content) + end, lines, st.sampled_from([b"", b"\n"]))


@settings(max_examples=60, deadline=None)
@given(texts(), texts())
def test_patch_makes_of_the_old_file_the_new_one(before: bytes, after: bytes) -> None:
    with folder() as root:
        (root / "f").write_bytes(before)
        diff = Plan((Change("/f", File(before), File(after)),)).diff()
        if before != after:
            subprocess.run(["patch", "-p1", "-s"], input=diff.encode(), cwd=root, check=True)
        left = (root / "f").read_bytes() if (root / "f").exists() else b""  # patch removes what becomes empty
        assert left == after


@pytest.mark.parametrize("line", [b"same\n", b"%d\n"])
def test_a_diff_of_a_large_hostile_file_takes_no_long(line: bytes) -> None:
    before = b"".join(line % n if b"%" in line else line for n in range(200_000))
    after = b"first\n" + before.replace(b"1", b"2") + b"last\n"
    began = time.process_time()
    assert "+last" in Plan((Change("/f", File(before), File(after)),)).diff()
    assert time.process_time() - began < 10
