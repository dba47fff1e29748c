"""Whether a tree is an image or the root of a machine that runs."""

from __future__ import annotations

from tpu_image.trees.base import Tree


def is_running(tree: Tree) -> bool:
    """Whether the tree is the root of a running system: it has processes, and systemd's run-time state.

    Either alone is also seen elsewhere: /proc in a chroot that an image is built in, /run in a careless copy.
    """
    return tree.is_directory("/proc/1") and tree.is_directory("/run/systemd/system")
