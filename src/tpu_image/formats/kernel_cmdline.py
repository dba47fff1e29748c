"""A kernel command line: cut into parameters as the kernel cuts it, kept as written.

Sources: ``next_arg`` (lib/cmdline.c), ``parse_args`` and ``parameq`` (kernel/params.c) of Linux. Double
quotes keep blanks together and cannot be escaped; ``-`` and ``_`` are the same in a name; what follows a bare
``--`` goes to init and is no parameter of the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from tpu_image.formats.edits import Edit, apply_edits

BLANKS = " \t\n\v\f\r"
"""What separates parameters: isspace of include/linux/ctype.h, its 0xA0 left out."""

_TOKEN = re.compile(r'(?:"[^"]*(?:"|\Z)|[^" \t\n\v\f\r])+')


class Token(NamedTuple):
    """One argument of the line: ``text`` as written, quotes included, at ``start`` up to ``end``."""

    text: str
    start: int
    end: int

    def _halves(self) -> tuple[str, str | None]:
        bare = self.text.removeprefix('"')
        # An equals sign in the first place separates nothing: next_arg takes index 0 for "none seen".
        equals = bare.find("=", 1)
        if equals < 0:
            return (bare.removesuffix('"') if bare != self.text else bare), None
        name, value = bare[:equals], bare[equals + 1 :]
        if value.startswith('"'):
            return name, value[1:].removesuffix('"')
        return name, value.removesuffix('"') if bare != self.text else value

    @property
    def name(self) -> str:
        """The parameter's name, with ``_`` for every ``-``: the kernel takes both for the same."""
        return self._halves()[0].replace("-", "_")

    @property
    def value(self) -> str | None:
        """What follows the equals sign, without quotes around it; None where there is no equals sign."""
        return self._halves()[1]


class KernelCommandLine(NamedTuple):
    """A whole line: ``tokens`` in order, repeated ones too, and ``text``, exactly what was parsed."""

    text: str
    tokens: tuple[Token, ...]

    @classmethod
    def parse(cls, text: str) -> KernelCommandLine:
        """Cut a text into tokens; every text is a command line."""
        return cls(text, tuple(Token(m.group(), m.start(), m.end()) for m in _TOKEN.finditer(text)))

    @property
    def parameters(self) -> tuple[Token, ...]:
        """The tokens that the kernel itself reads: those before a bare ``--``."""
        for index, token in enumerate(self.tokens):
            if token.text == "--":
                return self.tokens[:index]
        return self.tokens

    def values(self, name: str) -> list[str | None]:
        """The values of every occurrence of a parameter, in order."""
        return [token.value for token in self.parameters if token.name == name.replace("-", "_")]

    def last(self, name: str) -> Token | None:
        """The last occurrence of a parameter, which wins for most; None where there is none."""
        found = [token for token in self.parameters if token.name == name.replace("-", "_")]
        return found[-1] if found else None

    def append_edit(self, text: str) -> Edit:
        """Give the edit that adds a token where the kernel reads it.

        That is behind the last one, but before ``--`` and before a quote that is not closed.
        """
        parameters = self.parameters
        if parameters and parameters[-1].text.count('"') % 2:
            parameters = parameters[:-1]
        if parameters:
            end = parameters[-1].end
            return Edit(end, end, " " + text)
        if self.tokens:
            start = self.tokens[0].start
            return Edit(start, start, text + " ")
        return Edit(0, 0, text)

    def appended(self, text: str) -> KernelCommandLine:
        """Give the line with one more token, everything else as it is."""
        return self.edited([self.append_edit(text)])

    def replaced(self, token: Token, text: str) -> KernelCommandLine:
        """Give the line with another text in place of one of its tokens, the blanks around it kept."""
        return self.edited([Edit(token.start, token.end, text)])

    def edited(self, edits: Iterable[Edit]) -> KernelCommandLine:
        """Give the line after edits to its text."""
        return KernelCommandLine.parse(apply_edits(self.text, edits))
