"""The head of a file is the same whatever kind of tree it is in, and costs no more than that."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpu_image.trees.base import NotAFileError, NotFoundError, Tree
from tpu_image.trees.directory import DirectoryTree
from tpu_image.trees.memory import File, MemoryTree
from tpu_image.trees.overlay import Overlay


@pytest.fixture(params=["directory", "memory", "overlay", "overlay over a directory"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Tree:
    (tmp_path / "file").write_bytes(b"0123456789")
    (tmp_path / "empty").write_bytes(b"")
    memory = MemoryTree({"/file": File(b"0123456789"), "/empty": File(b"")})
    if request.param == "overlay":
        overlay = Overlay(MemoryTree())
        overlay.write("/file", b"0123456789")
        overlay.write("/empty", b"")
        return overlay
    kinds: dict[str, Tree] = {"directory": DirectoryTree(tmp_path), "memory": memory}
    return kinds.get(request.param) or Overlay(DirectoryTree(tmp_path))


@pytest.mark.parametrize(("path", "head"), [("/file", b"0123"), ("/empty", b"")])
def test_the_head_is_the_first_bytes(tree: Tree, path: str, head: bytes) -> None:
    assert tree.read_head(path, 4) == head
    assert tree.read_head(path, 100) == tree.read_bytes(path)


def test_what_is_no_file_has_no_head(tree: Tree) -> None:
    with pytest.raises(NotFoundError):
        tree.read_head("/none", 4)
    with pytest.raises(NotAFileError):
        tree.read_head("/", 4)


def test_a_sparse_terabyte_has_a_head_too(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.write(b"head")
        file.truncate(1 << 40)
    assert DirectoryTree(tmp_path).read_head("/large", 4) == b"head"
