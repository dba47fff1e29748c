"""Changes to a text by position, so that whatever is not changed stays byte for byte."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Edit(NamedTuple):
    """Put ``text`` in place of the characters from ``start`` up to ``end`` (equal: insert)."""

    start: int
    end: int
    text: str


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """Carry out edits whose positions all mean the text as it was before any of them.

    Insertions at one position come out in the order given.

    Raises:
        ValueError: two edits overlap.
    """
    pieces = []
    done = 0
    for edit in sorted(edits, key=lambda e: (e.start, e.end)):
        if edit.start < done:
            raise ValueError(f"edits overlap at {edit.start}")
        pieces += [text[done : edit.start], edit.text]
        done = edit.end
    return "".join([*pieces, text[done:]])
