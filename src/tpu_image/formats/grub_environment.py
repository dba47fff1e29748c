"""GRUB's environment block: ``grubenv``, a file of fixed size that GRUB itself can write.

Source: the GRUB manual, "The GRUB environment block"; grub-core/lib/envblk.c: a first line, ``name=value``
lines in which a backslash keeps the character behind it (a newline too), and ``#`` up to the block's end.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tpu_image.formats import FormatError
from tpu_image.formats.edits import Edit, apply_edits

SIGNATURE = "# GRUB Environment Block\n"
SIZE_LIMIT = 64 * 1024
"""Bytes of a block at most; grub-editenv makes 1024."""

_VARIABLE = re.compile(r"([^#=\n][^=\n]*)=((?:\\[\s\S]|[^\\\n])*)\n")
_COMMENT = re.compile(r"#[^\n]*\n")
_ESCAPE = re.compile(r"\\([\s\S])")


class EnvironmentBlock(NamedTuple):
    """A whole block; ``text`` is exactly what was parsed (UTF-8 with PEP 383 for other bytes)."""

    text: str
    variables: tuple[tuple[str, str], ...]
    spans: tuple[tuple[int, int], ...]
    """Where the values stand in the text."""
    end: int
    """Where the padding begins."""

    @classmethod
    def parse(cls, text: str) -> EnvironmentBlock:
        """Read a block.

        Raises:
            FormatError: it is no environment block.
        """
        if not text.startswith(SIGNATURE):
            raise FormatError("does not begin as a GRUB environment block", 1)
        if len(text) > SIZE_LIMIT:
            raise FormatError(f"longer than {SIZE_LIMIT} characters")
        variables, spans = [], []
        position = len(SIGNATURE)
        while position < len(text):
            if match := _VARIABLE.match(text, position):
                variables.append((match.group(1), _ESCAPE.sub(r"\1", match.group(2))))
                spans.append(match.span(2))
            else:
                match = _COMMENT.match(text, position)
            if match is None:
                break
            position = match.end()
        if text[position:].strip("#"):
            raise FormatError("a line that is no variable", text.count("\n", 0, position) + 1)
        return cls(text, tuple(variables), tuple(spans), position)

    def get(self, name: str) -> str | None:
        """The value of a variable; None where it is not in the block."""
        return dict(self.variables).get(name)

    def line_of(self, name: str) -> int:
        """The line of a variable, counted from 1; 0 where it is not in the block."""
        for (own, _), (start, _) in zip(self.variables, self.spans, strict=True):
            if own == name:
                return self.text.count("\n", 0, start) + 1
        return 0

    def with_value(self, name: str, value: str) -> EnvironmentBlock:
        """Give the block, of the same size, with another value for a variable, which is added if it is new.

        Raises:
            FormatError: the block has no room for it.
        """
        written = re.sub(r"([\\\n])", r"\\\1", value)
        edits = [
            Edit(start, end, written)
            for (own, _), (start, end) in zip(self.variables, self.spans, strict=True)
            if own == name
        ]
        used = apply_edits(self.text[: self.end], edits or [Edit(self.end, self.end, f"{name}={written}\n")])
        room = _size(self.text) - _size(used)
        if room < 0:
            raise FormatError(f"no room for {name} in {_size(self.text)} bytes")
        return EnvironmentBlock.parse(used + "#" * room)


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))
