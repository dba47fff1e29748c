"""Text of unknown origin, made safe to show on one line.

Shown as it is, it could move a terminal's cursor or hide a line (ECMA-48 control sequences, bidirectional controls
of Unicode TR 9), or break a document (characters that XML 1.0 section 2.2 excludes, lone surrogates in JSON).
"""

from __future__ import annotations


def escaped(text: str, keep: str = "") -> str:
    r"""Give a text in which every character that is no graphic one or space, nor in ``keep``, is an escape.

    ``\x1b`` stands for a control character or for a byte that was not UTF-8 (PEP 383), ``\u202e`` for others.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _escape(c) for c in text)


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")
