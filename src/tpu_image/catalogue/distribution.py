"""Which distribution a tree holds, as far as requirements differ by it."""

from __future__ import annotations

from typing import NamedTuple

from tpu_image.formats import os_release
from tpu_image.trees.base import Tree


class Distribution(NamedTuple):
    """What os-release says; every field is empty where it says nothing. ``path`` is the file."""

    name: str = ""
    id: str = ""
    like: tuple[str, ...] = ()
    version: str = ""
    path: str = ""

    def is_a(self, family: str) -> bool:
        """Whether it is that distribution or derives from it: Ubuntu is a ``debian``."""
        return family in (self.id, *self.like)


def distribution_of(tree: Tree) -> Distribution:
    """Read os-release(5) of a tree, once for all who ask."""
    return tree.derive(_read)


def _read(tree: Tree) -> Distribution:
    for path in os_release.PATHS:
        text = tree.read_text_if_present(path)
        if text is not None:
            values = os_release.parse(text)
            return Distribution(
                name=values.get("PRETTY_NAME") or values.get("NAME", ""),
                id=values.get("ID", "linux"),
                like=tuple(values.get("ID_LIKE", "").split()),
                version=values.get("VERSION_ID", ""),
                path=path,
            )
    return Distribution()
