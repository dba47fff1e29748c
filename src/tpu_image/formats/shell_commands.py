"""The simple commands of a shell script, as far as a text tells them without running it.

Grammar: POSIX shell, "Token Recognition". Variables that the text itself sets to plain values are filled in;
all else that a shell would expand stays as it is written, with its ``$`` or backquote.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

TEXT_LIMIT = 256 * 1024
"""Characters of a script that are read."""

EXPANSION_LIMIT = 256 * 1024
"""Characters that variables may add to a script; those beyond stay as they are written."""

_RESERVED = frozenset(("if", "then", "else", "elif", "do", "while", "until", "!", "{", "exec", "time"))
"""Words that may stand before a command."""

_BLANKS = " \t\r"
_OPERATORS = ";&|()\n<>"
_QUOTES = "'\""


class ShellCommand(NamedTuple):
    """Words of one command; ``source`` is the file it reads, or the last word of what is piped into it."""

    words: tuple[str, ...]
    source: str
    line: int


def split_commands(text: str, variables: Mapping[str, str] | None = None) -> list[ShellCommand]:
    """Give the commands of a text in order, whatever conditions they stand under."""
    known = dict(variables or {})
    commands: list[ShellCommand] = []
    words: list[str] = []
    source, piped, reads, line = "", "", False, 1
    for token, operator, number in _Scanner(text[:TEXT_LIMIT], known).tokens():
        if not operator and reads:
            source, reads = token, False
        elif not operator:
            line = line if words else number
            words.append(token)
        elif token in "<>":
            reads = token == "<"
        else:
            words = _without_prefix(words, known)
            if words:
                commands.append(ShellCommand(tuple(words), source or piped, line))
            piped = words[-1] if words and token == "|" else ""
            words, source, reads = [], "", False
    return commands


def _without_prefix(words: list[str], variables: dict[str, str]) -> list[str]:
    """Take reserved words and assignments away; a command of assignments alone sets the variables."""
    assigned: dict[str, str] = {}
    start = 0
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            assigned[name] = value
        elif word not in _RESERVED:
            break
        start += 1
    if start == len(words):
        variables.update(assigned)
    return words[start:]


class _Scanner:
    """Reads tokens from left to right."""

    def __init__(self, text: str, variables: Mapping[str, str]) -> None:
        self._text = text
        self._variables = variables
        self._position = 0
        self._line = 1
        self._budget = EXPANSION_LIMIT

    def tokens(self) -> Iterator[tuple[str, bool, int]]:
        """Yield each token, whether it is an operator, and its line; a line break ends the text."""
        while self._position < len(self._text):
            character = self._text[self._position]
            if character in _OPERATORS:
                yield character, True, self._line
                self._take()
            elif character in _BLANKS:
                self._take()
            elif character == "#":
                end = self._text.find("\n", self._position)
                self._position = len(self._text) if end < 0 else end
            elif self._text.startswith("\\\n", self._position):
                self._take(2)
            else:
                line = self._line
                yield self._word(), False, line
        yield "\n", True, self._line

    def _take(self, count: int = 1) -> str:
        taken = self._text[self._position : self._position + count]
        self._position += count
        self._line += taken.count("\n")
        return taken

    def _word(self) -> str:
        parts: list[str] = []
        quote = ""
        while self._position < len(self._text):
            character = self._text[self._position]
            if not quote and character in _BLANKS + _OPERATORS:
                break
            if character == quote or (not quote and character in _QUOTES):
                quote = "" if quote else self._take()
                self._position += 0 if quote else 1
            elif character == "\\" and quote != "'":
                parts.append(self._escaped(quote))
            elif character == "$" and quote != "'":
                parts.append(self._variable())
            else:
                parts.append(self._take())
        return "".join(parts)

    def _escaped(self, quote: str) -> str:
        pair = self._take(2)
        if pair == "\\\n":
            return ""
        return pair if quote and pair[1:] not in ("$", "`", '"', "\\") else pair[1:]

    def _variable(self) -> str:
        """Read ``$NAME`` or ``${NAME}``; what is not known, or is another expansion, stays as written."""
        start = self._take()
        braced = self._text.startswith("{", self._position)
        end = begin = self._position + braced
        while end < len(self._text) and (self._text[end].isalnum() or self._text[end] == "_"):
            end += 1
        name = self._text[begin:end]
        closed = not braced or self._text.startswith("}", end)
        value = self._variables.get(name)
        if value is None or not closed or len(value) > self._budget:
            return start
        self._budget -= len(value)
        self._take(end + braced - self._position)
        return value
