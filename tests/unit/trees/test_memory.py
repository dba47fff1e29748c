"""A tree in memory holds only what a file system could."""

from __future__ import annotations

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpu_image.trees.base import NotAFileError, NotFoundError, TooLargeError
from tpu_image.trees.memory import Directory, File, MemoryTree, Node, Symlink


def test_directories_above_a_node_exist_by_themselves() -> None:
    tree = MemoryTree({"/a/b/c": File(b"")})
    assert [path for path, _ in tree.nodes()] == ["/", "/a", "/a/b", "/a/b/c"]
    assert tree.names("/a") == ["b"]


def test_a_path_of_any_depth_can_be_placed() -> None:
    path = "/d" * 2000
    assert MemoryTree({path: File(b"deep")}).read_bytes(path) == b"deep"


@pytest.mark.parametrize("above", [File(b""), Symlink("/etc")])
def test_nothing_is_placed_below_what_is_no_directory(above: Node) -> None:
    tree = MemoryTree({"/a": above})
    with pytest.raises(NotAFileError, match=r"/a: is a .*, not a directory"):
        tree.put("/a/b/c", File(b""))
    assert [path for path, _ in tree.nodes()] == ["/", "/a"]


def test_a_directory_is_hidden_by_nothing_while_it_holds_something() -> None:
    tree = MemoryTree({"/a/b": File(b""), "/empty": Directory()})
    with pytest.raises(NotAFileError, match="/a: is a directory that is not empty"):
        tree.put("/a", Symlink("/etc"))
    tree.put("/empty", Symlink("/a"))
    assert tree.is_file("/empty/b")


def test_placing_a_link_changes_where_paths_lead() -> None:
    tree = MemoryTree({"/real/file": File(b"1"), "/place": Directory()})
    assert not tree.exists("/place/file")
    tree.put("/place", Symlink("real"))
    assert tree.read_bytes("/place/file") == b"1"


def test_the_size_of_a_link_is_the_bytes_of_its_target() -> None:
    entry = MemoryTree({"/l": Symlink("é\udcff")}).lstat("/l")
    assert entry is not None
    assert entry.size == 3


def test_reading_says_why_it_cannot() -> None:
    tree = MemoryTree({"/d/f": File(b"12345")})
    with pytest.raises(NotFoundError, match="/gone: does not exist"):
        tree.read_bytes("/gone")
    with pytest.raises(NotAFileError, match="/d: is a directory, not a regular file"):
        tree.read_bytes("/d")
    with pytest.raises(TooLargeError, match="/d/f: is larger than 4 bytes"):
        tree.read_bytes("/d/f", 4)


NAME_PARTS = st.text("ab.*?[]!-", min_size=1, max_size=6)


@given(st.sets(NAME_PARTS, max_size=6), NAME_PARTS)
def test_names_match_as_fnmatch_says(names: set[str], pattern: str) -> None:
    names -= {".", ".."}
    tree = MemoryTree({f"/d/{name}": File(b"") for name in names})
    assert tree.names("/d", pattern) == sorted(n for n in names if fnmatch.fnmatchcase(n, pattern))
