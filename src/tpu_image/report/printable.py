"""What a report quotes: it comes out of images that nobody vouches for, as file names and lines of files."""

from __future__ import annotations

from tpu_image.formats.printable import escaped

LIMIT = 1000
"""Characters of one quoted text at most; a longer one is cut and its length told."""


def printable(text: str, limit: int = LIMIT) -> str:
    """Give the text as one printable line (:func:`~tpu_image.formats.printable.escaped`)."""
    safe = escaped(text[:limit])
    return safe if len(text) <= limit else f"{safe}... ({len(text)} characters)"
