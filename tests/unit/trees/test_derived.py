"""What readers worked out from a tree is gone once the tree has changed."""

from __future__ import annotations

from collections.abc import Callable

from tpu_image.trees.memory import File, MemoryTree
from tpu_image.trees.overlay import Overlay


def test_every_change_of_an_overlay_ends_it() -> None:
    overlay = Overlay(MemoryTree({"/b": File(b"")}))
    trial = Overlay(overlay)
    trial.write("/trial", "1")
    changes: tuple[Callable[[], None], ...] = (
        lambda: overlay.write("/a", "1"),
        lambda: overlay.write("/a", "1", mode=0o600),
        lambda: overlay.symlink("/l", "a"),
        lambda: overlay.make_directory("/d"),
        lambda: overlay.remove("/b"),
        lambda: overlay.absorb(trial),
    )
    for change in changes:
        overlay.derived["x"] = 1
        change()
        assert overlay.derived == {}


def test_every_change_of_a_tree_in_memory_ends_it() -> None:
    tree = MemoryTree()
    tree.derived["x"] = 1
    tree.put("/a", File(b""))
    assert tree.derived == {}
