"""What requirements worked out from a tree, kept for each other while the tree stays as it is."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from tpu_image.trees.base import Tree
from tpu_image.trees.memory import MemoryTree, Node
from tpu_image.trees.overlay import Overlay

_kept: WeakKeyDictionary[Tree, tuple[dict[str, Node | None], dict[object, object]]] = WeakKeyDictionary()


def kept(tree: Tree) -> dict[object, object]:
    """Give the place for what is worked out from a tree; a changed tree has a new one.

    Keys are the caller's own. What is put there must not hold the tree, which would then never be freed.
    """
    if isinstance(tree, MemoryTree):
        return {}  # it may change in ways that do not show
    written = dict(tree.written) if isinstance(tree, Overlay) else {}
    known = _kept.get(tree)
    if known is None or known[0] != written:
        known = _kept[tree] = (written, {})
    return known[1]
