"""Files of ``tmpfiles.d``: what systemd-tmpfiles makes, writes and changes at every boot (tmpfiles.d(5))."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tpu_image.formats import FormatError
from tpu_image.formats.systemd_command import split_words

DIRECTORIES = ("/etc/tmpfiles.d", "/run/tmpfiles.d", "/usr/local/lib/tmpfiles.d", "/usr/lib/tmpfiles.d")
"""Where the files are, the first of equal names wins."""

_COLUMNS = 6


class Line(NamedTuple):
    """One line; a column that says nothing (``-``) is empty."""

    number: int
    kind: str
    """Its type, without the marks that follow the letter: ``w``, ``z``, ``Z``."""
    path: str
    mode: int | None
    group: str
    argument: str
    """As written, with escapes."""


def parse(text: str) -> Iterator[Line]:
    """Read a file; lines that systemd-tmpfiles gives up are left out."""
    for number, content in enumerate(text.splitlines(), 1):
        if not content.strip() or content.lstrip().startswith(("#", ";")):
            continue
        *columns, argument = _columns(content)
        if columns and columns[0] and columns[1].startswith("/"):
            kind, path, mode, _, group = columns
            yield Line(number, kind[0], path, _mode(mode), group, argument)


def _columns(content: str) -> list[str]:
    """Give the five columns, ``-`` as empty, and the argument; nothing for a line with an open quote."""
    words = content.split(None, _COLUMNS - 1)
    try:
        columns = ["" if word == "-" else word for part in words[:5] for word in split_words(part) if word]
    except FormatError:
        return [""]
    argument = words[5].rstrip() if len(words) == _COLUMNS else ""
    return [*columns, *[""] * (5 - len(columns)), argument]


def _mode(text: str) -> int | None:
    """Read a mode: ``~`` before it masks, ``:`` leaves alone what exists."""
    digits = text.removeprefix("~")
    is_mode = 0 < len(digits) <= 5 and not digits.strip("01234567")
    return int(digits, 8) if is_mode else None
