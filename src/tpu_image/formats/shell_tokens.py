"""Tokens of a shell file: words and operators, with here-documents skipped.

Sources: POSIX.1-2017, Shell Command Language 2.3; bash(1) for ``&>``, ``<<<``, ``;&`` and process
substitution.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tpu_image.formats import FormatError
from tpu_image.formats.shell_words import NAME, Word, assigned_inside, line_of, scan_word, skip_nested

REDIRECTIONS = frozenset(("<<<", "<<-", "<<", "<>", "<&", "<", ">>", ">|", ">&", ">", "&>>", "&>"))

_OPERATOR = re.compile(r";;&|;;|;&|;|&&|&>>|&>|&|\|\||\|&|\||<<<|<<-|<<|<>|<&|<|>>|>\||>&|>|\(|\)|\n")
_SPACE = re.compile(r"(?:[ \t]|\\\n)+")
_COMMENT = re.compile(r"#[^\n]*")
_ASSIGNED = re.compile(rf"({NAME})(\+?)=")


NO_WORD = Word("", 0, 0, ())


class Token(NamedTuple):
    """An operator (``text`` is it) or a word; ``name`` is set where the word looks like an assignment."""

    start: int
    text: str = ""
    word: Word = NO_WORD
    name: str = ""
    appends: bool = False
    array: bool = False
    """Whether what is assigned is a list in parentheses."""
    assigned: frozenset[str] = frozenset()
    """Variables that the expansions of the word, or of a here-document ended here, may assign."""

    @property
    def raw(self) -> str:
        """The word as written; empty for an operator."""
        return self.word.raw

    @property
    def is_word(self) -> bool:
        """Whether it is a word."""
        return not self.text


def tokens(text: str) -> Iterator[Token]:
    """Cut a shell file into tokens.

    Raises:
        FormatError: something is not closed.
    """
    position = 0
    delimiters: list[tuple[str, bool]] = []
    redirection = ""
    while position < len(text):
        skipped = _SPACE.match(text, position) or _COMMENT.match(text, position)
        if skipped:
            position = skipped.end()
            continue
        operator = _OPERATOR.match(text, position)
        if operator:
            token = Token(position, operator.group())
            position = operator.end()
            if token.text == "\n" and delimiters:
                position, assigned = _skip_here_documents(text, position, delimiters)
                delimiters = []
                token = Token(token.start, "\n", assigned=assigned)
            elif token.text in ("<", ">") and text.startswith("(", position):
                position = skip_nested(text, position)
                token = Token(token.start, word=Word(text, token.start, position, ()))
        else:
            token = _word(text, position)
            position = token.word.end
            if redirection in ("<<", "<<-"):
                delimiters.append((_delimiter(token), redirection == "<<-"))
        redirection = token.text
        yield token


def _word(text: str, position: int) -> Token:
    match = _ASSIGNED.match(text, position)
    if match is None:
        word = scan_word(text, position)
        if "\\\n" in word.raw.partition("=")[0]:
            raise FormatError("a name continued on the next line", line_of(text, position))
        return Token(position, word=word, assigned=assigned_inside(word.raw))
    array = text.startswith("(", match.end())
    if array:
        value = Word(text, match.end(), skip_nested(text, match.end()), ())
    else:
        value = scan_word(text, match.end(), assigned=True)
    return Token(position, "", value, match.group(1), bool(match.group(2)), array, assigned_inside(value.raw))


def _delimiter(token: Token) -> str:
    literal = None if token.name else token.word.literal
    if literal is None:
        raise FormatError("a here-document whose end is not plain", line_of(token.word.text, token.start))
    return literal


def _skip_here_documents(
    text: str, position: int, delimiters: list[tuple[str, bool]]
) -> tuple[int, frozenset[str]]:
    start = position
    for delimiter, strips_tabs in delimiters:
        while position < len(text):
            end = text.find("\n", position)
            end = len(text) if end < 0 else end
            line = text[position:end]
            position = end + 1
            if (line.lstrip("\t") if strips_tabs else line) == delimiter:
                break
    return position, assigned_inside(text[start:position])
