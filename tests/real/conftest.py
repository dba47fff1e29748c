"""A real Debian root for the tests that need one, and a way to see what changed in it."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Snapshot = dict[str, tuple[object, ...]]


@pytest.fixture(scope="session")
def debian_root_tar() -> Path:
    """The tar of a Debian root, as ``make test`` makes it."""
    name = os.environ.get("TPU_IMAGE_TEST_ROOT_TAR", "")
    if not Path(name).is_file() or not name:
        pytest.fail("TPU_IMAGE_TEST_ROOT_TAR names no Debian root tar: run these tests through `make test`")
    if os.geteuid() != 0:
        pytest.fail("a Debian root with its owners can be unpacked by root alone: run `sudo make test`")
    return Path(name)


@pytest.fixture(scope="session")
def unpack_root(debian_root_tar: Path) -> Callable[[Path], Path]:
    """A function that unpacks the Debian root into an empty folder."""

    def unpack(folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            ["tar", "-xf", debian_root_tar, "-C", folder, "--numeric-owner", "--exclude=./dev/*"], check=True
        )
        return folder

    return unpack


@pytest.fixture
def debian_root(unpack_root: Callable[[Path], Path], tmp_path: Path) -> Iterator[Path]:
    """A writable copy of a real Debian root that this test may change."""
    root = unpack_root(tmp_path / "root")
    yield root
    subprocess.run(["rm", "-rf", "--one-file-system", root], check=True)


def snapshot(root: Path) -> Snapshot:
    """Everything that undo must bring back: kind, mode, owner, link target and content of every path."""
    state: Snapshot = {}
    for folder, directories, files in os.walk(root):
        for name in [*directories, *files]:
            path = os.path.join(folder, name)
            status = os.lstat(path)
            content = ""
            if os.path.islink(path):
                content = os.readlink(path)
            elif name in files and os.path.isfile(path):
                content = hashlib.sha256(Path(path).read_bytes()).hexdigest()
            state[os.path.relpath(path, root)] = (status.st_mode, status.st_uid, status.st_gid, content)
    return state


@pytest.fixture(name="snapshot")
def snapshot_fixture() -> Callable[[Path], Snapshot]:
    """The function :func:`snapshot`."""
    return snapshot
