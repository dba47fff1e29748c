"""Resource limits (setrlimit(2)) as systemd settings and ``/proc/PID/limits`` write them.

A limit is counted in the kernel's own units: bytes for ``memlock``, descriptors for ``nofile``.
"""

from __future__ import annotations

from typing import NamedTuple

UNLIMITED = 2**64 - 1
"""``RLIM_INFINITY`` of a 64-bit kernel."""

BYTE_ITEMS = frozenset(("as", "core", "data", "fsize", "memlock", "rss", "stack"))
"""Limits counted in bytes, by their names in limits.conf(5)."""

PROCESS_NAMES = {"Max locked memory": "memlock", "Max open files": "nofile"}
"""Names in ``/proc/PID/limits`` (kernel: ``lnames`` in fs/proc/base.c)."""

_SUFFIXES = ("E", "P", "T", "G", "M", "K", "B", "")
_POWERS = {"E": 6, "P": 5, "T": 4, "G": 3, "M": 2, "K": 1, "B": 0, "": 0}
_SPACE = " \t\n\r"


class Limit(NamedTuple):
    """The soft and the hard value of one limit."""

    soft: int
    hard: int


def parse_setting(item: str, text: str) -> Limit | None:
    """Read the value of ``LimitNOFILE=`` or the like; None where systemd refuses it (systemd.exec(5))."""
    soft_text, colon, hard_text = text.partition(":")
    soft = _parse_value(item, soft_text)
    hard = _parse_value(item, hard_text) if colon else soft
    return None if soft is None or hard is None or soft > hard else Limit(soft, hard)


def _parse_value(item: str, text: str) -> int | None:
    if text == "infinity":
        return UNLIMITED
    value = _parse_size(text) if item in BYTE_ITEMS else _parse_number(text)
    return None if value is None or value >= UNLIMITED else value


def _parse_number(text: str) -> int | None:
    """Read an unsigned integer as strtoull(3) does with base 0, and ``0b`` and ``0o`` beside it."""
    text = text.lstrip(_SPACE)
    digits = text.lower().removeprefix("-" if text.strip("-0") == "" else "+")
    base = {"0x": 16, "0b": 2, "0o": 8}.get(digits[:2], 10)
    if base != 10:
        digits = digits[2:]
    elif digits.startswith("0") and len(digits) > 1:
        base = 8
    known = "0123456789abcdef"[:base]
    if not digits or len(digits) > 64 or any(digit not in known for digit in digits):
        return None
    return int(digits, base)


def _parse_size(text: str) -> int | None:
    """Read bytes with binary suffixes, the larger terms first: ``64M``, ``1.5G``, ``1G 512M``."""
    total = 0
    allowed: tuple[str, ...] = _SUFFIXES
    rest = text
    while rest or allowed == _SUFFIXES:
        whole, rest = _digits(rest.lstrip(_SPACE).removeprefix("+"))
        fraction = ""
        if rest.startswith("."):
            fraction, rest = _digits(rest[1:])
        rest = rest.lstrip(_SPACE)
        suffix = rest[:1] if rest[:1] and rest[:1] in allowed else ""
        if not whole or len(whole) > 20 or "" not in allowed:
            return None
        factor = 1024 ** _POWERS[suffix]
        total += int(whole) * factor + int(float(f"0.{fraction or 0}") * factor)
        allowed = allowed[allowed.index(suffix) + 1 :]
        rest = rest[len(suffix) :]
    return total


def _digits(text: str) -> tuple[str, str]:
    count = 0
    while count < len(text) and text[count] in "0123456789":
        count += 1
    return text[:count], text[count:]


def format_setting(limit: Limit) -> str:
    """Write a limit as a systemd setting: ``infinity``, ``1024``, ``1024:524288``."""
    soft, hard = ("infinity" if value == UNLIMITED else str(value) for value in (limit.soft, limit.hard))
    return soft if soft == hard else f"{soft}:{hard}"


def parse_process_limits(text: str) -> dict[str, Limit]:
    """Read ``/proc/PID/limits``: the limits of :data:`PROCESS_NAMES` by their names in limits.conf(5)."""
    limits: dict[str, Limit] = {}
    for line in text.splitlines():
        for name, item in PROCESS_NAMES.items():
            if line.startswith(name):
                values = [_process_value(word) for word in line[len(name) :].split()[:2]]
                if len(values) == 2 and values[0] is not None and values[1] is not None:
                    limits[item] = Limit(values[0], values[1])
    return limits


def _process_value(word: str) -> int | None:
    if word == "unlimited":
        return UNLIMITED
    return int(word) if word.isascii() and word.isdigit() and len(word) <= 20 else None


def describe(item: str, value: int) -> str:
    """Say a value as people do: ``unlimited``, ``64 KiB``, ``1024``."""
    if value == UNLIMITED:
        return "unlimited"
    if item not in BYTE_ITEMS:
        return str(value)
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value and value % size == 0:
            return f"{value // size} {unit}"
    return f"{value} bytes"
