"""What is kept from a tree is gone once the tree has changed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

from tpu_image.catalogue.binding import bindings
from tpu_image.catalogue.memo import kept
from tpu_image.catalogue.requirement import Profile
from tpu_image.trees.memory import File, MemoryTree
from tpu_image.trees.overlay import Overlay
from vfio_trees import image


def test_it_stays_while_the_overlay_does() -> None:
    overlay = Overlay(MemoryTree())
    overlay.write("/a", "1")
    kept(overlay)["x"] = 1
    assert kept(overlay) == {"x": 1}


def test_every_change_of_an_overlay_ends_it() -> None:
    overlay = Overlay(MemoryTree({"/b": File(b"")}))
    changes: tuple[Callable[[], None], ...] = (
        lambda: overlay.write("/a", "1"),
        lambda: overlay.write("/a", "2"),
        lambda: overlay.write("/a", "2", mode=0o600),
        lambda: overlay.symlink("/l", "a"),
        lambda: overlay.make_directory("/d"),
        lambda: overlay.remove("/b"),
    )
    for change in changes:
        kept(overlay)["x"] = 1
        change()
        assert kept(overlay) == {}


def test_nothing_is_kept_of_a_tree_that_may_change_unseen() -> None:
    tree = MemoryTree()
    kept(tree)["x"] = 1
    assert kept(tree) == {}


def test_a_tree_is_not_held_by_what_is_kept_of_it() -> None:
    overlay = Overlay(image())
    bindings(overlay, Profile())
    assert kept(overlay)
    gone = weakref.ref(overlay)
    del overlay
    gc.collect()
    assert gone() is None
