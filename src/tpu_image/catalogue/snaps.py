"""Snaps of a tree: installed ones, and those of the seed, which snapd installs at the first boot."""

from __future__ import annotations

import re

from tpu_image.trees.base import Tree

INSTALLED = "/var/lib/snapd/snaps"
SEED = "/var/lib/snapd/seed"
SEED_LIST = f"{SEED}/seed.yaml"
SNAPD = ("/usr/lib/snapd/snapd", "/usr/libexec/snapd/snapd")


def has_snapd(tree: Tree) -> bool:
    """Whether the program is there without which no snap is installed or started."""
    return any(tree.is_file(path) for path in SNAPD)


def installed(tree: Tree, name: str) -> str:
    """Give the path of an installed snap; empty where it is not."""
    return _file(tree, INSTALLED, name)


def seeded(tree: Tree, name: str) -> str:
    """Give the path of a snap that lies in the seed, be it listed or not; empty where it does not."""
    return _file(tree, f"{SEED}/snaps", name)


def is_listed(tree: Tree, name: str) -> bool:
    """Whether the seed lists the snap: snapd installs no other."""
    entry = rf"^[ \t-]*name:[ \t]*(['\"]?){re.escape(name)}\1[ \t]*(#.*)?$"
    return re.search(entry, tree.read_text_if_present(SEED_LIST) or "", re.MULTILINE) is not None


def _file(tree: Tree, directory: str, name: str) -> str:
    return next(iter(tree.files(directory, f"{name}_*.snap")), "")
