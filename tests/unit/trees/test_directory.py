"""A directory is read without ever leaving it, whatever it holds and whoever changes it meanwhile."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from disk_trees import as_nobody, folder, swapped
from tpu_image.trees import directory
from tpu_image.trees.base import (
    Entry,
    Kind,
    NotAFileError,
    NotFoundError,
    NotReadableError,
    TooLargeError,
    TreeError,
)
from tpu_image.trees.directory import DESCRIPTOR_LIMIT, DirectoryTree

CANARY = b"this is outside the root"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory beside the root with a file that must never be read."""
    path = tmp_path / "outside"
    path.mkdir()
    (path / "file").write_bytes(CANARY)
    return path


@pytest.fixture
def root(tmp_path: Path, outside: Path) -> Path:
    path = tmp_path / "root"
    (path / "etc").mkdir(parents=True)
    (path / "etc/file").write_bytes(b"inside")
    return path


@pytest.fixture
def tree(root: Path) -> Iterator[DirectoryTree]:
    with DirectoryTree(root) as opened:
        yield opened


def test_files_links_and_directories_are_described_as_lstat_does(root: Path, tree: DirectoryTree) -> None:
    (root / "etc/file").chmod(0o4711)
    (root / "etc/link").symlink_to("file")
    status = (root / "etc/file").stat()
    assert tree.lstat("/etc/file") == Entry(Kind.FILE, 0o4711, status.st_uid, status.st_gid, 6)
    assert tree.lstat("/etc/link") == Entry(Kind.SYMLINK, 0o777, status.st_uid, status.st_gid, 4, "file")
    assert tree.stat("/etc/link") == tree.lstat("/etc/file")
    assert tree.is_directory("/etc")
    assert tree.is_directory("/")
    assert tree.lstat("/gone") is None
    assert tree.names("/etc") == ["file", "link"]
    assert tree.names("/etc/file") == []
    assert tree.read_bytes("/etc/link") == b"inside"


# What a root may be given as.


def test_a_root_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TreeError, match=r"gone: does not exist"):
        DirectoryTree(tmp_path / "gone")


def test_a_file_as_root_is_refused(root: Path) -> None:
    with pytest.raises(TreeError, match=r"etc/file: is not a directory"):
        DirectoryTree(root / "etc/file")


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "x" * 300])
def test_a_root_that_no_directory_can_have_is_refused(name: str) -> None:
    with pytest.raises(TreeError):
        DirectoryTree(name)


def test_a_root_may_be_a_link_for_the_user_chose_it(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root)
    assert DirectoryTree(str(tmp_path / "link")).read_bytes("/etc/file") == b"inside"


def test_a_root_that_may_not_be_entered_is_refused() -> None:
    with folder() as top:
        (top / "closed/root").mkdir(parents=True)
        (top / "closed").chmod(0o700)

        def reason() -> str:
            with pytest.raises(TreeError) as raised:
                DirectoryTree(top / "closed/root")
            return raised.value.reason

        assert as_nobody(reason) == "permission denied"


# Links that want to lead out.


@pytest.mark.parametrize(
    "target",
    [
        "{outside}/file",
        "../../outside/file",
        "../../../../../../../..{outside}/file",
        "/proc/self/root{outside}/file",
    ],
)
def test_a_link_never_leads_out(root: Path, tree: DirectoryTree, outside: Path, target: str) -> None:
    (root / "etc/link").symlink_to(target.format(outside=outside))
    assert not tree.exists("/etc/link")
    with pytest.raises(NotFoundError):
        tree.read_bytes("/etc/link")


def test_a_chain_of_links_to_directories_never_leads_out(
    root: Path, tree: DirectoryTree, outside: Path
) -> None:
    (root / "a").symlink_to("etc/b")
    (root / "etc/b").symlink_to("../c")
    (root / "c").symlink_to(outside)
    assert not tree.exists("/a/file")
    assert tree.names("/a") == []


def test_an_absolute_link_means_the_trees_own_root(root: Path, tree: DirectoryTree) -> None:
    (root / "link").symlink_to("/etc/file")
    assert tree.read_bytes("/link") == b"inside"


def test_parents_of_the_root_are_the_root(tree: DirectoryTree) -> None:
    assert tree.read_bytes("/../../etc/../../etc/file") == b"inside"


def test_a_path_that_claims_to_hold_no_link_is_not_believed(
    root: Path, tree: DirectoryTree, outside: Path
) -> None:
    (root / "link").symlink_to(outside)
    for use in (
        lambda: tree.lstat_canonical("/link/file"),
        lambda: tree.read_canonical("/link/file", 100),
        lambda: tree.list_canonical("/link"),
    ):
        with pytest.raises(NotReadableError, match="a symbolic link that was not there a moment ago"):
            use()
    assert tree.lstat_canonical("/../outside/file") is None
    assert tree.list_canonical("/etc/../../outside") == []
    with pytest.raises(NotFoundError):
        tree.read_canonical("/etc/../../outside/file", 100)


# Changes between one step and the next.


class ChangedMeanwhile(DirectoryTree):
    """A directory in which something happens right after a path was looked at."""

    def __init__(self, root: Path, path: str, change: Callable[[], object]) -> None:
        super().__init__(root)
        self._path, self._change = path, change

    def lstat_canonical(self, path: str) -> Entry | None:
        entry = super().lstat_canonical(path)
        if path == self._path:
            self._path = ""
            self._change()
        return entry


def replace_by(path: Path, make: Callable[[Path], object]) -> Callable[[], object]:
    """Move away what is there and make something else."""

    def change() -> None:
        path.rename(path.with_name("moved"))
        make(path)

    return change


def test_a_directory_swapped_for_a_link_is_an_error(root: Path, outside: Path) -> None:
    change = replace_by(root / "etc", lambda path: path.symlink_to(outside))
    with pytest.raises(NotReadableError, match="symbolic link"):
        ChangedMeanwhile(root, "/etc", change).read_bytes("/etc/file")


def test_a_directory_swapped_for_a_link_is_not_listed(root: Path, outside: Path) -> None:
    change = replace_by(root / "etc", lambda path: path.symlink_to(outside))
    with pytest.raises(NotReadableError, match="symbolic link"):
        ChangedMeanwhile(root, "/etc", change).names("/etc")


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda path: path.symlink_to("../../outside/file"), NotReadableError),
        (os.mkfifo, NotAFileError),
        (os.mkdir, NotAFileError),
        (lambda path: None, NotFoundError),
    ],
    ids=["link", "fifo", "directory", "nothing"],
)
def test_a_file_swapped_after_it_was_looked_at_is_an_error(
    root: Path, make: Callable[[Path], object], error: type[TreeError]
) -> None:
    tree = ChangedMeanwhile(root, "/etc/file", replace_by(root / "etc/file", make))
    with pytest.raises(error):
        tree.read_canonical("/etc/file", 100)


def test_a_race_with_somebody_who_swaps_a_directory_for_a_link_is_never_lost(
    root: Path, outside: Path
) -> None:
    results: set[object] = set()
    with swapped(root / "etc", outside):
        deadline = time.monotonic() + 30
        tries = itertools.count()
        while (next(tries) < 3000 or not results > {b"inside"}) and time.monotonic() < deadline:
            with DirectoryTree(root) as tree:
                try:
                    results.add(tree.read_bytes("/etc/file"))
                except TreeError as error:
                    results.add(type(error))
    assert CANARY not in results
    assert results > {b"inside"}, "there was no race"


# What is no regular file.


def make_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


@pytest.mark.parametrize(
    ("make", "kind"), [(os.mkfifo, Kind.FIFO), (make_socket, Kind.SOCKET), (os.mkdir, Kind.DIRECTORY)]
)
def test_what_is_no_file_is_not_opened(
    root: Path, tree: DirectoryTree, make: Callable[[Path], object], kind: Kind
) -> None:
    make(root / "special")
    entry = tree.lstat("/special")
    assert entry is not None
    assert entry.kind is kind
    with pytest.raises(NotAFileError, match=f"/special: is a {kind.value}, not a regular file"):
        tree.read_bytes("/special")


def test_a_device_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "open", refuse_files(os.open))
    tree = DirectoryTree("/dev")
    with pytest.raises(NotAFileError, match="character special file"):
        tree.read_bytes("/zero")


def refuse_files(real: Callable[..., int]) -> Callable[..., int]:
    def opened(path: str | bytes, flags: int, *arguments: int, **names: int) -> int:
        assert flags & os.O_DIRECTORY, f"{path!r} was opened"
        return real(path, flags, *arguments, **names)

    return opened


# Sizes.


def test_a_sparse_file_of_100_gb_is_refused_without_reading(
    root: Path, tree: DirectoryTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (root / "huge").open("wb") as file:
        file.truncate(100 << 30)
    monkeypatch.setattr(os, "read", lambda *_: pytest.fail("it was read"))
    with pytest.raises(TooLargeError, match="/huge: is larger than 16777216 bytes"):
        tree.read_bytes("/huge")


@pytest.mark.parametrize(("limit", "fits"), [(5, False), (6, True), (7, True), (0, False)])
def test_the_limit_of_a_read_is_exact(tree: DirectoryTree, limit: int, fits: bool) -> None:
    if fits:
        assert tree.read_bytes("/etc/file", limit) == b"inside"
    else:
        with pytest.raises(TooLargeError):
            tree.read_bytes("/etc/file", limit)


def test_a_file_of_many_blocks_is_read_whole(root: Path, tree: DirectoryTree) -> None:
    content = bytes(range(256)) * 4000
    (root / "big").write_bytes(content)
    assert tree.read_bytes("/big") == content


def test_files_without_a_size_are_read_to_their_end_within_the_limit() -> None:
    assert os.stat("/proc/self/status").st_size == 0
    assert DirectoryTree("/").read_text("/proc/self/status").startswith("Name:")
    assert len(DirectoryTree("/proc").read_bytes("/kallsyms")) > 100_000
    with pytest.raises(TooLargeError):
        DirectoryTree("/proc").read_bytes("/kallsyms", 100_000)


def test_a_directory_of_too_many_names_is_refused(
    root: Path, tree: DirectoryTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "NAMES_LIMIT", 3)
    for name in ("a", "b"):
        (root / "etc" / name).touch()
    assert tree.names("/etc") == ["a", "b", "file"]
    (root / "etc/c").touch()
    with pytest.raises(TooLargeError, match="/etc: holds more than 3 names"):
        DirectoryTree(root).names("/etc")


# Names.


def test_names_and_contents_that_are_not_utf_8_come_through(root: Path, tree: DirectoryTree) -> None:
    Path(os.fsdecode(os.fsencode(root) + b"/caf\xe9")).write_bytes(b"\xff\xfe")
    assert tree.names("/") == ["caf\udce9", "etc"]
    assert tree.read_text("/caf\udce9").encode("utf-8", "surrogateescape") == b"\xff\xfe"


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "x" * 256, "x/" * 3000])
def test_a_name_that_no_file_can_have_is_not_there(tree: DirectoryTree, name: str) -> None:
    for path in (f"/{name}", f"/{name}/file", f"/etc/{name}"):
        assert tree.lstat(path) is None
        assert tree.names(path) == []
        with pytest.raises(NotFoundError):
            tree.read_bytes(path)


def test_a_path_is_read_as_deep_as_the_kernel_takes_paths(root: Path, tree: DirectoryTree) -> None:
    here = os.open(root, os.O_PATH)
    for _ in range(30):
        os.mkdir("d" * 199, dir_fd=here)
        here, above = os.open("d" * 199, os.O_PATH, dir_fd=here), here
        os.close(above)
        os.close(os.open("file", os.O_CREAT, dir_fd=here))
    os.close(here)
    assert tree.read_bytes(("/" + "d" * 199) * 20 + "/file") == b""
    assert not tree.exists(("/" + "d" * 199) * 30 + "/file")


# Rights.


def test_what_may_not_be_read_says_so_and_is_not_called_absent() -> None:
    with folder() as root:
        (root / "closed").mkdir(mode=0o700)
        (root / "closed/file").touch()
        (root / "unlistable").mkdir(mode=0o711)
        (root / "unlistable/file").write_bytes(b"found")
        (root / "secret").touch(mode=0o600)

        def reasons() -> list[str]:
            tree = DirectoryTree(root)
            assert tree.read_bytes("/unlistable/file") == b"found"
            found = []
            for use in (
                lambda: tree.read_bytes("/secret"),
                lambda: tree.lstat("/closed/file"),
                lambda: tree.names("/closed"),
                lambda: tree.names("/unlistable"),
            ):
                with pytest.raises(NotReadableError) as raised:
                    use()
                found.append(str(raised.value))
            return found

        denied = ["/secret", "/closed/file", "/closed", "/unlistable"]
        assert as_nobody(reasons) == [f"{path}: permission denied" for path in denied]


# Descriptors.


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_few_directories_stay_open_and_all_are_closed_at_the_end(root: Path) -> None:
    for n in range(3 * DESCRIPTOR_LIMIT):
        (root / f"{n}/x/y").mkdir(parents=True)
        (root / f"{n}/x/y/file").touch()
    before = open_descriptors()
    with DirectoryTree(root) as tree:
        for _ in range(2):
            for n in range(3 * DESCRIPTOR_LIMIT):
                assert tree.read_bytes(f"/{n}/x/y/file") == b""
                assert open_descriptors() <= before + DESCRIPTOR_LIMIT
    assert open_descriptors() == before
    tree.close()


def test_a_tree_is_a_look_at_one_time(root: Path, tree: DirectoryTree) -> None:
    assert not tree.exists("/etc/later")
    assert "later" not in tree.names("/etc")
    (root / "etc/later").touch()
    assert not tree.exists("/etc/later")
    assert "later" not in tree.names("/etc")
    again = DirectoryTree(root)
    assert again.exists("/etc/later")
    assert "later" in again.names("/etc")


def test_a_closed_tree_says_that_it_is(tree: DirectoryTree) -> None:
    assert tree.exists("/etc/file")
    tree.close()
    for use in (tree.exists, tree.read_bytes, tree.names):
        with pytest.raises(NotReadableError, match=r"/etc.*: the tree was closed"):
            use("/etc/file")


def test_a_tree_that_is_forgotten_is_closed(root: Path) -> None:
    before = open_descriptors()
    assert DirectoryTree(root).exists("/etc/file")
    assert open_descriptors() == before
