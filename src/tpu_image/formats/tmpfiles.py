"""Files of ``tmpfiles.d``: what systemd-tmpfiles makes, writes and changes at every boot (tmpfiles.d(5))."""

from __future__ import annotations

import fnmatch
import functools
from typing import NamedTuple

from tpu_image.formats import FormatError
from tpu_image.formats.systemd_command import first_word

DIRECTORIES = ("/etc/tmpfiles.d", "/run/tmpfiles.d", "/usr/local/lib/tmpfiles.d", "/usr/lib/tmpfiles.d")
"""Where the files are, the first of equal names wins."""

_COLUMNS = 6
"""Type, path, mode, user, group and age; the argument is the rest of the line."""
_UNUSUAL = frozenset("\"'\\\v\f\x1c\x1d\x1e\x1f")
"""What is quoted or escaped, or is white space for Python alone: a line without is split at once."""


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

    def means(self, path: str) -> bool:
        """Whether its path, which may be a pattern (glob(7)), stands for another."""
        return self.path.count("/") == path.count("/") and fnmatch.fnmatchcase(path, self.path)


@functools.lru_cache(maxsize=256)
def parse(text: str) -> tuple[Line, ...]:
    """Read a file; lines that systemd-tmpfiles gives up are left out."""
    lines = (_line(number, content.strip()) for number, content in enumerate(text.splitlines(), 1))
    return tuple(line for line in lines if line is not None)


def _line(number: int, content: str) -> Line | None:
    try:
        (kind, path, mode, _, group, _), argument = _columns(content)
    except FormatError:
        return None
    if not (kind and kind[0].isalpha() and path.startswith("/")):
        return None
    return Line(number, kind[0], path, _mode(mode), group, argument)


def _columns(content: str) -> tuple[list[str], str]:
    """Give the columns before the argument, ``-`` and those that are not there as empty, and the argument."""
    if content.isascii() and _UNUSUAL.isdisjoint(content):
        words = content.split(None, _COLUMNS)
        columns = ["" if word == "-" else word for word in words[:_COLUMNS]]
        return [*columns, *[""] * (_COLUMNS - len(columns))], "".join(words[_COLUMNS:])
    columns = []
    position = 0
    while position < len(content) and len(columns) < _COLUMNS:
        word, position = first_word(content, position)
        columns.append("" if word == "-" else word)
        position += len(content[position:]) - len(content[position:].lstrip())
    return [*columns, *[""] * (_COLUMNS - len(columns))], content[position:]


def _mode(text: str) -> int | None:
    """Read a mode: ``~`` before it masks, ``:`` leaves alone what exists."""
    digits = text.removeprefix("~")
    is_mode = 0 < len(digits) <= 5 and not digits.strip("01234567")
    return int(digits, 8) if is_mode else None
