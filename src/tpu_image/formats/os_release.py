"""os-release(5): which distribution a root is."""

from __future__ import annotations

PATHS = ("/etc/os-release", "/usr/lib/os-release")
"""Where the file is looked for; the first that exists counts."""

_KEY = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_")


def parse(text: str) -> dict[str, str]:
    """Read the assignments; lines that are none are left out, and the last of equal names counts.

    Values are shell words: quotes and backslashes are taken away, nothing is expanded.
    """
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and key and _KEY.issuperset(key):
            values[key] = _unquote(value)
    return values


def _unquote(value: str) -> str:
    quote = value[:1] if value[:1] in ("'", '"') else ""
    if quote and len(value) >= 2 and value.endswith(quote):
        value = value[1:-1]
    return value if quote == "'" else _unescape(value)


def _unescape(value: str) -> str:
    result: list[str] = []
    characters = iter(value)
    for character in characters:
        result.append(next(characters, "") if character == "\\" else character)
    return "".join(result)
