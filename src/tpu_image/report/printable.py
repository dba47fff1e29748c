"""Text of unknown origin, made safe to show.

What a report quotes comes out of images that nobody vouches for: file names, lines of files. Shown as it
is, it could move a terminal's cursor, hide a line (ECMA-48 control sequences, bidirectional controls of
Unicode TR 9) or break a document (characters that XML 1.0 section 2.2 excludes, lone surrogates in JSON).
"""

from __future__ import annotations

LIMIT = 1000
"""Characters of one quoted text at most; a longer one is cut and its length told."""

_NAMED = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str, limit: int = LIMIT) -> str:
    r"""Give the text as one printable line.

    Every character that is no graphic one or space becomes a backslash escape: ``\x1b`` for a control
    character or for a byte that was not UTF-8 (PEP 383), ``\u202e`` for others.
    """
    cut = text[:limit]
    safe = cut if cut.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in cut)
    return safe if len(text) <= limit else f"{safe}... ({len(text)} characters)"


def _escape(character: str) -> str:
    code = ord(character)
    if character in _NAMED:
        return _NAMED[character]
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
