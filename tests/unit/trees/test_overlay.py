"""An overlay is what its base would be after the same writes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from disk_trees import NAMES, folder, materialise, trees
from overlay_writes import Write, writes
from tpu_image.trees.base import LinkLoopError, NotAFileError, NotFoundError, TooLargeError, Tree, TreeError
from tpu_image.trees.directory import DirectoryTree
from tpu_image.trees.memory import Directory, File, MemoryTree, Node, Symlink
from tpu_image.trees.overlay import Overlay


def seen(tree: Tree, path: str) -> object:
    """All that a tree tells of a path."""
    try:
        entry = tree.lstat(path)
        if entry is not None and entry.kind is not None and tree.is_directory(path) and not entry.target:
            return entry.kind, entry.mode, entry.uid, entry.gid, tree.names(path)
        return entry, tree.exists(path), tree.read_text_if_present(path), tree.names(path), tree.resolve(path)
    except LinkLoopError:
        return "loop"
    except NotFoundError:
        return "not found"
    except NotAFileError as error:
        return error.reason


EVERYWHERE = ["/", *(f"/{a}" for a in NAMES), *(f"/{a}/{b}" for a in NAMES for b in NAMES)]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(trees(), st.lists(writes(), max_size=6))
@example(
    {"/a": Symlink("b"), "/b": Directory(), "/b/c": File(b"")},
    [Write("remove", "/a"), Write("write", "/a/b/c")],
)
@example(
    {"/a": File(b"")}, [Write("remove", "/a"), Write("make_directory", "/a"), Write("symlink", "/a/b", "/a")]
)
@example({"/a": Symlink("b/c/a")}, [Write("write", "/a"), Write("remove", "/a"), Write("write", "/a")])
def test_an_overlay_is_the_base_after_the_same_writes(nodes: dict[str, Node], calls: list[Write]) -> None:
    with folder() as root, DirectoryTree(root) as disk:
        materialise(nodes, root)
        overlay, on_disk, expected = Overlay(MemoryTree(nodes)), Overlay(disk), nodes
        for call in calls:
            for tried in (overlay, on_disk):
                with contextlib.suppress(TreeError):
                    call.on_overlay(tried)
            expected = call.on_nodes(expected)
        places = {*EVERYWHERE, *expected, *nodes, *(call.path for call in calls)}
        for path in places:
            wanted = seen(MemoryTree(expected), path)
            assert seen(overlay, path) == wanted
            if path not in ("/", "/..") and not path.endswith(".."):
                assert seen(on_disk, path) == wanted
        assert dict(MemoryTree(nodes).nodes()) == dict(overlay.base.nodes())  # type: ignore[attr-defined]
        assert on_disk.written == overlay.written


@given(trees())
def test_before_is_what_the_base_has(nodes: dict[str, Node]) -> None:
    overlay = Overlay(MemoryTree(nodes))
    for path, node in nodes.items():
        assert overlay.before(path) == node
    assert overlay.before("/gone") is None


def test_a_file_keeps_its_mode_and_owner_and_a_new_one_is_roots() -> None:
    overlay = Overlay(MemoryTree({"/old": File(b"", 0o4750, 7, 8)}))
    overlay.write("/old", "new")
    overlay.write("/new", "new")
    overlay.write("/given", b"\xff", mode=0o600, owner=(1, 2))
    assert overlay.written == {
        "/old": File(b"new", 0o4750, 7, 8),
        "/new": File(b"new", 0o644, 0, 0),
        "/given": File(b"\xff", 0o600, 1, 2),
    }


def test_directories_are_made_on_the_way_but_not_thousands_for_a_hostile_link() -> None:
    overlay = Overlay(MemoryTree({"/fair": Symlink("a/" * 60 + "x"), "/hostile": Symlink("a/" * 2000 + "x")}))
    with pytest.raises(TreeError, match="lies more than 64 directories below any that exists"):
        overlay.write("/hostile", "x")
    assert overlay.written == {}
    overlay.write("/fair", "x")
    assert overlay.read_text("/fair") == "x"
    assert len(overlay.written) == 61


def test_the_limit_of_a_read_holds_for_what_was_written() -> None:
    overlay = Overlay(MemoryTree())
    overlay.write("/a", "12345")
    with pytest.raises(TooLargeError, match="/a: is larger than 4 bytes"):
        overlay.read_bytes("/a", 4)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda o: o.write("/dir", ""), "/dir: is a directory, not a regular file"),
        (lambda o: o.write("/file/below", ""), "/file: is a regular file, not a directory"),
        (lambda o: o.write("/gone/../x", ""), "/gone/../x: does not exist"),
        (lambda o: o.symlink("/dir", "x"), "/dir: is a directory, not a link"),
        (lambda o: o.symlink("/new", ""), "/new: cannot be a link to an empty path"),
        (lambda o: o.make_directory("/file"), "/file: is a regular file, not a directory"),
        (lambda o: o.remove("/dir"), "/dir: is a directory; only files and links are removed"),
        (lambda o: o.remove("/pipe"), "/pipe: is a fifo; only files and links are removed"),
        (lambda o: o.symlink("/pipe", "x"), "/pipe: is a fifo, not a link"),
        (lambda o: o.before("/pipe"), "/pipe: is a fifo; only files, links and directories are changed"),
        (lambda o: o.before("/huge"), "/huge: is larger than 16777216 bytes"),
    ],
)
def test_what_cannot_be_written_is_said_and_nothing_is(
    tmp_path: Path, use: Callable[[Overlay], object], message: str
) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 30)
    overlay = Overlay(DirectoryTree(tmp_path))
    with pytest.raises(TreeError) as raised:
        use(overlay)
    assert str(raised.value) == message
    assert overlay.written == {}


def test_removing_what_is_not_there_is_nothing() -> None:
    overlay = Overlay(MemoryTree({"/dangling": Symlink("gone")}))
    overlay.remove("/gone")
    overlay.remove("/gone/../x")
    assert overlay.written == {}
    overlay.remove("/dangling")
    assert overlay.written == {"/dangling": None}
