"""Trees on the disk: made from nodes, looked at whole, and changed by processes that die or lack rights."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import pickle
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import strategies

from tpu_image.trees.memory import Directory, File, Node, Symlink

T = TypeVar("T")
Picture = dict[str, tuple[object, ...]]

NOBODY = 65534
OWNERS = [(0, 0), (1, 2)] if os.geteuid() == 0 else [(os.geteuid(), os.getegid())]
"""Owners that this process may give a file."""


def need_root() -> None:
    """Fail where a test cannot say anything without root."""
    if os.geteuid() != 0:
        pytest.fail("this test changes owners or mounts, so needs root: run `sudo make test`")


def owned(node: Node) -> Node:
    """The node with an owner that this process may give."""
    return (
        node if os.geteuid() == 0 else type(node)(**{**vars(node), "uid": OWNERS[0][0], "gid": OWNERS[0][1]})
    )


@contextlib.contextmanager
def folder(*, in_memory: bool = False) -> Iterator[Path]:
    """An empty folder that any user may enter, unlike pytest's; in memory, where syncing takes no time."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix="tree-", dir=memory if in_memory and memory.is_dir() else None))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path)


def materialise(nodes: Mapping[str, Node], root: Path) -> None:
    """Make nodes, given by canonical path with every parent directory before, below a folder."""
    for path, node in nodes.items():
        place = os.fsencode(root) + path.encode("utf-8", "surrogateescape")
        if isinstance(node, Directory):
            os.makedirs(place, exist_ok=True)
        elif isinstance(node, Symlink):
            os.symlink(node.target.encode("utf-8", "surrogateescape"), place)
        else:
            Path(os.fsdecode(place)).write_bytes(node.content)
        os.chown(place, node.uid, node.gid, follow_symlinks=False)
        if not isinstance(node, Symlink):
            os.chmod(place, node.mode)


def picture(root: Path, *, times: bool = True) -> Picture:
    """All that can be seen of every path: kind, mode, owner, content, attributes, times of all but directories."""
    paths = [os.path.join(top, name) for top, folders, files in os.walk(root) for name in [*folders, *files]]
    return {path[len(str(root)) :]: _look(path, times) for path in paths}


def _look(path: str, times: bool) -> tuple[object, ...]:
    status = os.lstat(path)
    content = os.readlink(path) if os.path.islink(path) else ""
    if os.path.isfile(path) and not content:
        content = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    names = os.listxattr(path, follow_symlinks=False)
    attributes = {name: os.getxattr(path, name, follow_symlinks=False) for name in names}
    time = status.st_mtime_ns if times and (content or not os.path.isdir(path)) else 0
    return status.st_mode, status.st_uid, status.st_gid, content, attributes, time


def in_child(action: Callable[[], T]) -> T:
    """Do something in a process of its own; give its result or raise its error."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            result: tuple[bool, object] = True, action()
        except BaseException as error:
            result = False, error
        with os.fdopen(writer, "wb") as pipe:
            pickle.dump(result, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        done, value = pickle.load(pipe)
    os.waitpid(child, 0)
    if not done:
        raise value
    return value  # type: ignore[no-any-return]


def as_nobody(action: Callable[[], T]) -> T:
    """Do something as the user ``nobody``; modules that it imports must be imported already."""
    need_root()

    def without_rights() -> T:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        return action()

    return in_child(without_rights)


def dies_at(step: int, action: Callable[[Callable[[str], None]], object]) -> bool:
    """Do something in a process that is killed at its n-th step (from 0); say whether it got so far."""
    child = os.fork()
    if child == 0:
        steps = iter(range(step, -1, -1))

        def count(_: str) -> None:
            if next(steps) == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        with contextlib.suppress(BaseException):
            action(count)
            os._exit(0)
        os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), "it failed by itself"
    return status != 0


MS_RDONLY, MS_REMOUNT, MS_REC, MS_PRIVATE = 1, 32, 16384, 1 << 18  # sys/mount.h
CLONE_NEWNS = 0x00020000  # sched.h


def mount(target: Path, options: str, flags: int = 0) -> None:
    """Mount a tmpfs."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.fsencode(target), b"tmpfs", flags, options.encode()):
        raise OSError(ctypes.get_errno(), f"mount of {target}")


def with_private_mounts(action: Callable[[], T]) -> T:
    """Do something in a process whose mounts nobody else sees and that go with it."""
    need_root()

    def unshared() -> T:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(CLONE_NEWNS) or libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None):
            raise OSError(ctypes.get_errno(), "unshare")
        return action()

    return in_child(unshared)


NAMES = ("a", "b", "c", "é", "\udcff")
"""Few, so that generated paths meet; one is not UTF-8."""


@strategies.composite
def trees(draw: strategies.DrawFn, *, names: tuple[str, ...] = NAMES, depth: int = 3) -> dict[str, Node]:
    """Directories, files and links by canonical path, each directory before what is in it."""
    nodes: dict[str, Node] = {}

    def fill(directory: str, levels: int) -> None:
        for name in draw(strategies.lists(strategies.sampled_from(names), unique=True, max_size=3)):
            path = f"{directory}/{name}"
            nodes[path] = draw(nodes_of(names, with_directories=levels > 0))
            if isinstance(nodes[path], Directory):
                fill(path, levels - 1)

    fill("", depth)
    return nodes


@functools.cache
def targets(names: tuple[str, ...] = NAMES) -> strategies.SearchStrategy[str]:
    """Targets of links: absolute or not, with ``..``, ``.``, doubled and last slashes, names that are not there."""
    parts = strategies.lists(strategies.sampled_from([*names, "..", ".", ""]), min_size=1, max_size=5)
    return strategies.builds(
        lambda start, middle: (start + "/".join(middle)) or ".",
        strategies.sampled_from(["", "/", "../"]),
        parts,
    )


@functools.cache
def nodes_of(
    names: tuple[str, ...] = NAMES, *, with_directories: bool = True
) -> strategies.SearchStrategy[Node]:
    """Any node."""
    owners = strategies.sampled_from(OWNERS)
    contents = strategies.sampled_from([b"", b"one\n", b"two\nlines\n", b"no end", b"\xff\xfe\n", b"nul\0\n"])
    kinds: list[strategies.SearchStrategy[Node]] = [
        strategies.builds(
            lambda content, mode, owner: File(content, mode, *owner),
            contents,
            strategies.sampled_from([0o644, 0o600, 0o755, 0o4711]),
            owners,
        ),
        strategies.builds(lambda target, owner: Symlink(target, *owner), targets(names), owners),
    ]
    if with_directories:
        modes = strategies.sampled_from([0o755, 0o700, 0o1777, 0o2755])
        kinds.append(strategies.builds(lambda mode, owner: Directory(mode, *owner), modes, owners))
    return strategies.one_of(kinds)


def read_nodes(root: Path) -> dict[str, Node]:
    """Every node below a folder by canonical path, read without the code under test."""
    nodes: dict[str, Node] = {}
    for top, folders, files in os.walk(os.fsencode(root)):
        for name in [*folders, *files]:
            place = os.path.join(top, name)
            status = os.lstat(place)
            path = place[len(os.fsencode(root)) :].decode("utf-8", "surrogateescape")
            owner = (status.st_uid, status.st_gid)
            if os.path.islink(place):
                nodes[path] = Symlink(os.readlink(place).decode("utf-8", "surrogateescape"), *owner)
            elif os.path.isdir(place):
                nodes[path] = Directory(status.st_mode & 0o7777, *owner)
            else:
                nodes[path] = File(Path(os.fsdecode(place)).read_bytes(), status.st_mode & 0o7777, *owner)
    return nodes
