"""Values of udev rules: shell patterns with alternatives, and ``$name`` or ``%letter`` substitutions.

Sources: udev(7), fnmatch(3) (no flags: ``*`` also matches ``/``); systemd's ``udev-rules.c`` for alternatives
and the empty string, ``udev-event.c`` for substitutions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple


class Budget:
    """Steps that one evaluation may take, so that hostile rules cannot hold it up.

    Attributes:
        left: steps that remain; :meth:`spend` raises once they are gone.
    """

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int) -> None:
        """Take steps off.

        Raises:
            OverspentError: none are left.
        """
        self.left -= steps
        if self.left < 0:
            raise OverspentError


class OverspentError(Exception):
    """The rules take longer to evaluate than any real set does."""


class Pattern(NamedTuple):
    """The right side of a comparison: alternatives, and whether they are shell patterns."""

    alternatives: tuple[str, ...]
    empty: bool
    """Whether the empty string matches besides."""
    glob: bool
    negated: bool = False
    """Whether the sense is turned round: ``?*`` is udev's spelling of "not empty"."""
    ignore_case: bool = False

    def admits(self, text: str, budget: Budget) -> bool:
        """Whether a string is one of the alternatives; ``negated`` is the caller's to apply."""
        if not text and self.empty:
            return True
        if self.ignore_case:
            text = text.lower()
        if not self.glob:
            return text in self.alternatives
        return any(glob_matches(pattern, text, budget) for pattern in self.alternatives)


@functools.lru_cache(maxsize=4096)
def pattern(value: str, key: str = "", *, ignore_case: bool = False) -> Pattern:
    """Read the value of a comparison. ``key`` matters for ``SUBSYSTEM``, where three words mean the same."""
    if key == "SUBSYSTEM" and value in ("subsystem", "bus", "class"):
        return Pattern(("subsystem", "bus", "class"), empty=False, glob=False, ignore_case=ignore_case)
    if value in ("", "?*"):
        return Pattern((), empty=True, glob=False, negated=bool(value))
    parts = value.lower().split("|") if ignore_case else value.split("|")
    glob = any(c in value for c in "*?[")
    return Pattern(tuple(p for p in parts if p), "" in parts, glob, ignore_case=ignore_case)


def glob_matches(shell_pattern: str, text: str, budget: Budget) -> bool:
    """Whether fnmatch(3) without flags would match; time is at most the product of the two lengths."""
    if shell_pattern[-1:] == "*" and not any(c in shell_pattern[:-1] for c in "*?[\\"):
        budget.spend(1)
        return text.startswith(shell_pattern[:-1])
    units = _units(shell_pattern)
    at = position = 0
    star = resume = -1
    while position < len(text):
        budget.spend(1)
        unit = units[at] if at < len(units) else None
        if unit == "*":
            star, resume = at, position
            at += 1
        elif unit is not None and _unit_matches(unit, text[position]):
            at += 1
            position += 1
        elif star >= 0:
            resume += 1
            at, position = star + 1, resume
        else:
            return False
    return all(unit == "*" for unit in units[at:])


class _Set(NamedTuple):
    """A bracket expression."""

    characters: frozenset[str]
    ranges: tuple[tuple[str, str], ...]
    classes: tuple[str, ...]
    negated: bool

    def has(self, character: str) -> bool:
        found = (
            character in self.characters
            or any(low <= character <= high for low, high in self.ranges)
            or any(_CLASSES[name](character) for name in self.classes)
        )
        return found is not self.negated


_CLASSES: dict[str, Callable[[str], bool]] = {
    "alnum": str.isalnum,
    "alpha": str.isalpha,
    "blank": lambda c: c in " \t",
    "cntrl": lambda c: c < " " or c == "\x7f",
    "digit": lambda c: c in "0123456789",
    "graph": lambda c: "!" <= c <= "~",
    "lower": str.islower,
    "print": lambda c: " " <= c <= "~",
    "punct": lambda c: "!" <= c <= "~" and not c.isalnum(),
    "space": lambda c: c in " \t\n\v\f\r",
    "upper": str.isupper,
    "xdigit": lambda c: c in "0123456789abcdefABCDEF",
}


@functools.lru_cache(maxsize=1024)
def _units(shell_pattern: str) -> tuple[str | _Set, ...]:
    r"""Split a pattern: ``*``, ``?``, a set, or ``=c`` for the character c itself."""
    units: list[str | _Set] = []
    position = 0
    sets = True
    while position < len(shell_pattern):
        character = shell_pattern[position]
        if character == "[" and sets:
            read = _read_set(shell_pattern, position + 1)
            if read is not None:
                units.append(read[0])
                position = read[1]
                continue
            sets = False  # what has no end here has none further on; looking again would take quadratic time
        if character == "\\" and position + 1 < len(shell_pattern):
            position += 1
            units.append("=" + shell_pattern[position])
        elif character in "*?":
            if units[-1:] != ["*"] or character != "*":
                units.append(character)
        else:
            units.append("=" + character)
        position += 1
    return tuple(units)


def _unit_matches(unit: str | _Set, character: str) -> bool:
    if isinstance(unit, _Set):
        return unit.has(character)
    return unit == "?" or unit[1:] == character


def _read_set(text: str, position: int) -> tuple[_Set, int] | None:
    """Read a bracket expression after its ``[``; None where no ``]`` ends it, so that ``[`` is itself."""
    negated = text[position : position + 1] in ("!", "^")
    position += negated
    characters: set[str] = set()
    ranges: list[tuple[str, str]] = []
    classes: list[str] = []
    first = True
    while position < len(text):
        character = text[position]
        if character == "]" and not first:
            return _Set(frozenset(characters), tuple(ranges), tuple(classes), negated), position + 1
        first = False
        if text.startswith("[:", position):
            end = text.find(":]", position)
            if end >= 0 and text[position + 2 : end] in _CLASSES:
                classes.append(text[position + 2 : end])
                position = end + 2
                continue
        if character == "\\" and position + 1 < len(text):
            position += 1
            character = text[position]
        if text.startswith("-", position + 1) and text[position + 2 : position + 3] not in ("", "]"):
            ranges.append((character, text[position + 2]))
            position += 3
            continue
        characters.add(character)
        position += 1
    return None


class Substitution(NamedTuple):
    """One ``$name{attribute}`` in a value; ``attribute`` is empty where there is none."""

    name: str
    attribute: str = ""


_LETTERS = {
    "N": "devnode",
    "s": "attr",
    "E": "env",
    "k": "kernel",
    "n": "number",
    "d": "driver",
    "p": "devpath",
    "b": "id",
    "M": "major",
    "m": "minor",
    "c": "result",
    "P": "parent",
    "D": "name",
    "L": "links",
    "r": "root",
    "S": "sys",
}
_NAMES = ("devnode", "tempnode", "attr", "sysfs", *tuple(_LETTERS.values())[2:])
_OLD_NAMES = {"tempnode": "devnode", "sysfs": "attr"}


@functools.lru_cache(maxsize=1024)
def split_format(value: str) -> tuple[tuple[str | Substitution, ...], str]:
    """Split a value into text and substitutions; the second answer is what udev warns about, or empty.

    udev keeps an unknown ``$`` or ``%`` as it stands, and stops at a brace that is not closed or is empty.
    """
    pieces: list[str | Substitution] = []
    warning = ""
    position = 0
    while (at := _next_sign(value, position)) >= 0:
        pieces.append(value[position:at])
        sign, position = value[at], at + 1
        if value.startswith(sign, position):
            pieces.append(sign)
            position += 1
            continue
        name = _name_at(value, position, sign)
        if not name:
            warning = f"unknown substitution {value[at : at + 2]}"
            pieces.append(sign)
            continue
        position += 1 if sign == "%" else len(name)
        attribute = ""
        if value.startswith("{", position):
            end = value.find("}", position)
            if end <= position + 1:
                return tuple(p for p in pieces if p), "a brace that is not closed or holds nothing"
            attribute, position = value[position + 1 : end], end + 1
        name = _OLD_NAMES.get(name, name)
        if not attribute and name in ("attr", "env"):
            return tuple(p for p in pieces if p), f"${name} without an attribute"
        pieces.append(Substitution(name, attribute))
    pieces.append(value[position:])
    return tuple(p for p in pieces if p), warning


def _next_sign(value: str, position: int) -> int:
    found = [at for at in (value.find("$", position), value.find("%", position)) if at >= 0]
    return min(found, default=-1)


def _name_at(value: str, position: int, sign: str) -> str:
    if sign == "%":
        return _LETTERS.get(value[position : position + 1], "")
    return next((name for name in _NAMES if value.startswith(name, position)), "")
