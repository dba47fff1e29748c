"""Lines from the guest, as messages whose values are of the kind that is asked for.

A guest may say anything: lines are bounded, and what is not understood is told as a fault and otherwise left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

LINE_LIMIT = 4 * 1024 * 1024
"""Bytes of one line."""

TOTAL_LIMIT = 64 * 1024 * 1024
"""Bytes of a whole report."""

TEXT_LIMIT = 4096
"""Characters of an ordinary text."""

INTEGER_LIMIT = 1 << 63


class GuestError(Exception):
    """The guest says something that is not understood; the message is one line."""


class Message:
    """One object that the guest sent, or one inside it."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def text(self, name: str, limit: int = TEXT_LIMIT) -> str:
        """Give a text, cut to a limit.

        Raises:
            GuestError: there is none.
        """
        value = self._values.get(name)
        if not isinstance(value, str):
            raise GuestError(f"{name} is no text")
        return value[:limit]

    def whole(self, name: str) -> int:
        """Give a whole number.

        Raises:
            GuestError: it is none, or larger than 64 bits.
        """
        value = self._values.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= INTEGER_LIMIT:
            raise GuestError(f"{name} is no number")
        return value

    def count(self, name: str, limit: int = INTEGER_LIMIT - 1) -> int:
        """Give a whole number from 0 to a limit.

        Raises:
            GuestError: it is none.
        """
        value = self.whole(name)
        if not 0 <= value <= limit:
            raise GuestError(f"{name} is not from 0 to {limit}")
        return value

    def whole_or_none(self, name: str) -> int | None:
        """Give a whole number, or None where it is null."""
        return None if self._values.get(name) is None else self.whole(name)

    def number(self, name: str) -> float:
        """Give a finite number.

        Raises:
            GuestError: it is none.
        """
        value = self._values.get(name)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or abs(value) >= INTEGER_LIMIT:
            raise GuestError(f"{name} is no number")
        if not math.isfinite(value):
            raise GuestError(f"{name} is not finite")
        return float(value)

    def number_or_none(self, name: str) -> float | None:
        """Give a finite number, or None where it is null."""
        return None if self._values.get(name) is None else self.number(name)

    def flag(self, name: str) -> bool:
        """Give true or false.

        Raises:
            GuestError: it is neither.
        """
        value = self._values.get(name)
        if not isinstance(value, bool):
            raise GuestError(f"{name} is neither true nor false")
        return value

    def texts(self, name: str, count: int) -> tuple[str, ...]:
        """Give a list of texts, at most so many, each cut to the limit.

        Raises:
            GuestError: it is none.
        """
        value = self._values.get(name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise GuestError(f"{name} is no list of texts")
        return tuple(item[:TEXT_LIMIT] for item in value[:count])

    def inner(self, name: str) -> Message:
        """Give the object inside.

        Raises:
            GuestError: there is none.
        """
        value = self._values.get(name)
        if not isinstance(value, dict):
            raise GuestError(f"{name} is no object")
        return Message(value)

    def objects(self, name: str, count: int) -> tuple[Message, ...]:
        """Give a list of objects, at most so many.

        Raises:
            GuestError: it is none.
        """
        value = self._values.get(name)
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise GuestError(f"{name} is no list of objects")
        return tuple(map(Message, value[:count]))


class Reader:
    """Cuts what arrives into messages."""

    def __init__(self) -> None:
        self._partial = b""
        self._total = 0

    def feed(self, data: bytes) -> Iterator[Message | GuestError]:
        """Yield what has become whole: messages, and what is wrong with lines that are none.

        Raises:
            GuestError: a line or the whole is too long to go on.
        """
        self._total += len(data)
        *lines, self._partial = (self._partial + data).split(b"\n")
        if self._total > TOTAL_LIMIT or len(self._partial) > LINE_LIMIT:
            raise GuestError("the guest's report does not end")
        for line in lines:
            if line.strip():
                yield parse(line)


def parse(line: bytes) -> Message | GuestError:
    """Read one line."""
    try:
        values = json.loads(line, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return GuestError(f"a line of the report is no JSON: {line[:80]!r}")
    return (
        Message(values)
        if isinstance(values, dict)
        else GuestError(f"a line of the report is no object: {line[:80]!r}")
    )


def _refuse(name: str) -> float:
    raise ValueError(name)
