"""Paths of a tree lead where Linux says: compared with openat2(2) on the same links."""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from disk_trees import folder, materialise, targets, trees
from tpu_image.trees.base import LINK_LIMIT, LinkLoopError, NotFoundError
from tpu_image.trees.directory import DirectoryTree
from tpu_image.trees.memory import Directory, File, MemoryTree, Node, Symlink

NAMES = ("a", "b", "c")

SYS_OPENAT2 = 437  # the same on every architecture, asm-generic/unistd.h
RESOLVE_NO_MAGICLINKS, RESOLVE_IN_ROOT = 0x02, 0x10  # linux/openat2.h


class OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def kernel_resolves(root: Path, path: str, *, follow_last: bool = True) -> str:
    """Where the kernel is led when ``root`` is its root; raise what it says."""
    how = OpenHow(
        os.O_PATH | (0 if follow_last else os.O_NOFOLLOW), 0, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS
    )
    libc = ctypes.CDLL(None, use_errno=True)
    directory = os.open(root, os.O_PATH)
    try:
        found = libc.syscall(SYS_OPENAT2, directory, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
        if found < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        try:
            return os.readlink(f"/proc/self/fd/{found}")[len(os.path.realpath(root)) :] or "/"
        finally:
            os.close(found)
    finally:
        os.close(directory)


def assert_same(root: Path, tree: DirectoryTree, path: str, *, follow_last: bool) -> None:
    look = tree.stat if follow_last else tree.lstat
    try:
        found = kernel_resolves(root, path, follow_last=follow_last)
    except OSError as error:
        refusal = error.errno
    else:
        assert look(path) is not None
        assert tree.resolve(path, follow_last=follow_last) == found
        return
    if refusal == errno.ELOOP:
        with pytest.raises(LinkLoopError):
            look(path)
    else:
        assert refusal in (errno.ENOENT, errno.ENOTDIR)
        assert look(path) is None


def looked_up() -> st.SearchStrategy[str]:
    parts = st.lists(st.sampled_from([*NAMES, ".."]), min_size=1, max_size=6)
    return parts.map(lambda names: "/" + "/".join(names))


@settings(max_examples=150, deadline=None)
@given(trees(names=NAMES), st.lists(looked_up(), min_size=1, max_size=8))
@example({"/a": File(b""), "/b": Symlink("a/"), "/c": Symlink("a/.")}, ["/b", "/c", "/a/..", "/a/../a"])
@example({"/a": Symlink("/../../b"), "/b": Directory(), "/b/c": Symlink("../../a")}, ["/a/c", "/b/c/c/c"])
@example({"/a": Symlink("missing/../b"), "/b": File(b"")}, ["/a", "/missing/../b"])
@example({"/a": Symlink("a"), "/b": Symlink("/c"), "/c": Symlink("/b/.")}, ["/a", "/a/x", "/b", "/c/.."])
def test_a_path_leads_where_the_kernel_says(nodes: dict[str, Node], paths: list[str]) -> None:
    with folder() as root, DirectoryTree(root) as tree:
        materialise(nodes, root)
        for path in [*paths, *nodes, *(f"{path}/{name}" for path in nodes for name in (*NAMES, ".."))]:
            assert_same(root, tree, path, follow_last=True)
            if not path.endswith(".."):
                assert_same(root, tree, path, follow_last=False)


@pytest.mark.parametrize("links", [LINK_LIMIT - 1, LINK_LIMIT, LINK_LIMIT + 1])
def test_as_many_links_are_followed_as_the_kernel_follows(tmp_path: Path, links: int) -> None:
    materialise({f"/l{n}": Symlink(f"l{n + 1}") for n in range(links)}, tmp_path)
    (tmp_path / f"l{links}").write_bytes(b"")
    assert_same(tmp_path, DirectoryTree(tmp_path), "/l0", follow_last=True)


@settings(max_examples=60, deadline=None)
@given(trees(names=NAMES), st.lists(looked_up(), max_size=8))
def test_a_tree_in_memory_and_one_on_the_disk_give_the_same_answers(
    nodes: dict[str, Node], paths: list[str]
) -> None:
    memory = MemoryTree(nodes)
    with folder() as root, DirectoryTree(root) as disk:
        materialise(nodes, root)
        for path in [*nodes, *paths]:
            assert answer(memory, path) == answer(disk, path)


def answer(tree: MemoryTree | DirectoryTree, path: str) -> object:
    try:
        entry = tree.lstat(path)
        size = entry.size if entry and not tree.is_directory(path) else 0
        content = tree.read_bytes(path) if tree.is_file(path) else b""
        return entry and (entry.kind, entry.uid, entry.gid, entry.target, size), content, tree.names(path)
    except LinkLoopError:
        return "loop"


def test_what_does_not_exist_is_kept_in_a_resolved_path() -> None:
    tree = MemoryTree({"/var": Symlink("/srv/var")})
    assert tree.resolve("/var/lib/new/file") == "/srv/var/lib/new/file"


def test_a_parent_of_something_that_is_no_directory_is_not_found() -> None:
    tree = MemoryTree({"/file": File(b""), "/link": Symlink("gone/../file")})
    for path in ("/gone/../file", "/file/../file", "/link"):
        with pytest.raises(NotFoundError):
            tree.resolve(path)
        assert not tree.exists(path)
        assert tree.names(path) == []


def test_an_empty_link_leads_nowhere() -> None:
    tree = MemoryTree({"/link": Symlink(""), "/x": File(b"")})
    assert tree.lstat("/link") is not None
    assert not tree.exists("/link")
    assert not tree.exists("/link/x")


def test_links_in_a_loop_are_no_file_and_cannot_be_read() -> None:
    tree = MemoryTree({"/d/a": Symlink("b"), "/d/b": Symlink("a"), "/d/c": File(b"c")})
    assert not tree.exists("/d/a")
    assert not tree.is_file("/d/a")
    assert not tree.is_directory("/d/a")
    assert tree.files("/d") == ["/d/c"]
    with pytest.raises(LinkLoopError, match="/d/a: too many levels of symbolic links"):
        tree.read_bytes("/d/a")


@given(st.lists(targets(), max_size=40))
def test_resolving_ends_whatever_the_links(link_targets: list[str]) -> None:
    tree = MemoryTree({f"/l{n}": Symlink(target + f"/l{n + 1}") for n, target in enumerate(link_targets)})
    assert tree.exists("/l0") in (True, False)


def test_a_link_or_path_longer_than_linux_makes_leads_nowhere() -> None:
    tree = MemoryTree(
        {"/long": Symlink("x/" * 2047 + "x"), "/longer": Symlink("x/" * 2048), "/x": Directory()}
    )
    assert tree.resolve("/long") == "/x" * 2048
    for path in ("/longer", "/long/y", "/x" * 2049, "/gone" * 1000):
        assert not tree.exists(path)
        with pytest.raises(NotFoundError):
            tree.resolve(path)


def test_links_that_grow_the_path_at_every_step_end_soon() -> None:
    tree = MemoryTree(
        {f"/l{n}": Symlink(f"l{n + 1}/" + "x/" * 2000) for n in range(40)} | {"/l40": File(b"")}
    )
    assert not tree.exists("/l0")
