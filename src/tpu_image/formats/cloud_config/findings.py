"""What is wrong in a cloud-config, and the gathering of it."""

from __future__ import annotations

from typing import NamedTuple

from tpu_image.formats.yaml_text import Duplicate, Node, Scalar

FOUND_LIMIT = 100
"""Characters of a value that are shown."""


class Finding(NamedTuple):
    """One thing that is not as it looks; ``line`` and ``column`` count from 1."""

    message: str
    line: int
    column: int
    found: str = ""
    expected: str = ""
    breaks: bool = True
    """Whether cloud-init does something else than what is written; otherwise its schema alone objects."""


class Findings:
    """The findings of one text, in the order in which they were met."""

    def __init__(self) -> None:
        self.found: list[Finding] = []

    def add(self, message: str, at: Node | Duplicate, expected: str = "", *, breaks: bool = True) -> None:
        """Note something about the value or key ``at``."""
        text = at.text if isinstance(at, Scalar) else ""
        self.found.append(Finding(message, at.line, at.column, text[:FOUND_LIMIT], expected, breaks))

    def stops(self, key: str, node: Node, expected: str = "a quoted string") -> None:
        """Note a value on which the module that writes files raises, so that it writes no more."""
        self.add(f"{key}: cloud-init stops there and writes neither this file nor later ones", node, expected)


def nearest(word: str, known: tuple[str, ...], cutoff: float) -> str:
    """Give the known word most like ``word``; empty where none is (``cutoff`` as in difflib)."""
    import difflib

    return next(iter(difflib.get_close_matches(word.lower()[:40], known, 1, cutoff)), "")
