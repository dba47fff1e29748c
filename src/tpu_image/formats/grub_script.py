"""GRUB's own script language: words, commands and the arguments that a command gets.

Sources: the GRUB manual, "Shell-like scripting"; grub-core/script/yylex.l and execute.c for what is not said
there: an unquoted variable is split at blanks, an unset one is empty; grub-core/lib/cmdline.c for how the
arguments of ``linux`` become the kernel's command line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tpu_image.formats import FormatError

_SPACE = re.compile(r"(?:[ \t\r]|\\\r?\n)+")
_COMMENT = re.compile(r"#[^\n]*")
_OPERATOR = re.compile(r"\|\||&&|[{}|&;<>\n]")
_PLAIN = re.compile(r"[^{}|&$;<> \t\r\n'\"\\]+")
_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[?*#@])|\{([A-Za-z0-9_?*#@]+)\})")
_DOUBLE = re.compile(r'"((?:\\.|[^"\\])*)"', re.DOTALL)
_SINGLE = re.compile(r"'([^']*)'")
_ESCAPE_IN_DOUBLE = re.compile(r'\\(\n|[\\$"])')
_RUN_IN_DOUBLE = re.compile(r"[\\$]?[^\\$]*")
_NEEDS_ESCAPE = re.compile(r"[{}|&$;<> \t\r\n'\"\\#]")
_HEXADECIMAL = re.compile(r"\\x[0-9A-Fa-f]{2}")


class GrubWord(NamedTuple):
    """A word as written, from ``start`` up to ``end`` of its text, and the line it begins on."""

    raw: str
    start: int
    end: int
    line: int

    def fields(self) -> Iterator[tuple[str, str]]:
        """Give the parts in order, as (kind, text): ``literal``, ``variable`` and ``quoted-variable``."""
        position = 0
        while position < len(self.raw):
            if match := _PLAIN.match(self.raw, position) or _SINGLE.match(self.raw, position):
                yield "literal", match.group(1) if match.re is _SINGLE else match.group()
            elif match := _DOUBLE.match(self.raw, position):
                yield from _double_fields(match.group(1))
            elif match := _VARIABLE.match(self.raw, position):
                yield "variable", match.group(1) or match.group(2)
            elif self.raw[position] == "\\" and position + 1 < len(self.raw):
                if self.raw[position + 1] != "\n":
                    yield "literal", self.raw[position + 1]
                position += 2
                continue
            else:
                yield "literal", self.raw[position]
                position += 1
                continue
            position = match.end()

    def variables(self) -> set[str]:
        """Names of the variables in the word."""
        return {text for kind, text in self.fields() if kind != "literal"}

    def expand(self, variables: Mapping[str, str]) -> list[str]:
        """Give the arguments that the word becomes; a variable that is not given is empty."""
        arguments: list[str] = []
        current: str | None = None
        for kind, text in self.fields():
            if kind == "literal":
                current = (current or "") + text
            elif kind == "quoted-variable":
                current = (current or "") + variables.get(text, "")
            else:
                for index, piece in enumerate(variables.get(text, "").split()):
                    if index and current is not None:
                        arguments.append(current)
                        current = None
                    current = (current or "") + piece
        if current is not None or not self.variables():
            arguments.append(current or "")
        return arguments

    @property
    def text(self) -> str:
        """The word without quotes, its variables as written."""
        return "".join(text if kind == "literal" else f"${{{text}}}" for kind, text in self.fields())


def _double_fields(inside: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(inside):
        if match := _ESCAPE_IN_DOUBLE.match(inside, position):
            if match.group(1) != "\n":
                yield "literal", match.group(1)
            position = match.end()
        elif match := _VARIABLE.match(inside, position):
            yield "quoted-variable", match.group(1) or match.group(2)
            position = match.end()
        else:
            run = _RUN_IN_DOUBLE.match(inside, position)
            text = run.group() if run else inside[position]
            yield "literal", text
            position += len(text)
    if not inside:
        yield "literal", ""


def scan(text: str) -> Iterator[GrubWord | str]:
    """Cut a script into words and operators (strings; newline is one).

    Raises:
        FormatError: a quote is not closed.
    """
    position, line = 0, 1
    while position < len(text):
        skipped = _SPACE.match(text, position) or _COMMENT.match(text, position)
        operator = _OPERATOR.match(text, position)
        if skipped:
            end = skipped.end()
        elif operator:
            yield operator.group()
            end = operator.end()
        else:
            end = _word_end(text, position, line)
            yield GrubWord(text[position:end], position, end, line)
        line += text.count("\n", position, end)
        position = end


def _word_end(text: str, position: int, line: int) -> int:
    start = position
    while position < len(text):
        match = (
            _PLAIN.match(text, position)
            or _VARIABLE.match(text, position)
            or _SINGLE.match(text, position)
            or _DOUBLE.match(text, position)
        )
        if match:
            position = match.end()
        elif text[position] in "'\"":
            raise FormatError(f"a {text[position]} is not closed", line + text.count("\n", start, position))
        elif text[position] == "\\":
            position += 2
        elif text[position] == "$":
            position += 1
        else:
            break
    return min(position, len(text))


def words_of(text: str) -> list[GrubWord]:
    """Give the words of a text, operators left out.

    Raises:
        FormatError: a quote is not closed.
    """
    return [item for item in scan(text) if isinstance(item, GrubWord)]


def quoted(text: str) -> str:
    """Write a text as one GRUB word."""
    return _NEEDS_ESCAPE.sub(lambda match: "\\" + match.group(), text) or "''"


def kernel_text(arguments: list[str]) -> str:
    """Give the command line that GRUB hands to the kernel for these arguments of ``linux``."""
    return " ".join(_kernel_argument(argument) for argument in arguments)


def _kernel_argument(argument: str) -> str:
    if not any(character in argument for character in "\\'\" "):
        return argument
    pieces = []
    position = 0
    while position < len(argument):
        if match := _HEXADECIMAL.match(argument, position):
            pieces.append(match.group())
            position = match.end()
            continue
        pieces.append(("\\" if argument[position] in "\\'\"" else "") + argument[position])
        position += 1
    text = "".join(pieces)
    return f'"{text}"' if " " in argument else text
