"""Command lines of systemd services: what ``ExecStart=`` runs.

Splitting and quoting: systemd.service(5), "Command lines", and ``extractfirst_word()`` of systemd's
``src/basic/extract-word.c``. Specifiers (``%h``) and variables (``$NAME``) stay as they are written.
"""

from __future__ import annotations

from typing import NamedTuple

from tpu_image.formats import FormatError

_SPACE = " \t\n\r"
_PREFIXES = "@-:+!|"
_ESCAPES = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    "\\": "\\",
    '"': '"',
    "'": "'",
    "s": " ",
}
_NUMERIC_ESCAPES = {"x": 2, "u": 4, "U": 8}
"""Hexadecimal digits behind each letter (systemd.syntax(7), "Supported escapes")."""


class Command(NamedTuple):
    """One command: ``prefixes`` of ``@-:+!|``, the program, and its arguments without ``argv[0]``."""

    prefixes: str
    program: str
    arguments: tuple[str, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The program and its arguments."""
        return (self.program, *self.arguments)


def parse_commands(value: str) -> list[Command]:
    """Read the value of one ``ExecStart=``: several commands stand apart by a lone ``;``.

    Raises:
        FormatError: a quote is not closed. systemd ignores such a line.
    """
    commands: list[Command] = []
    words: list[str] = []
    for word in [*split_words(value, separator=";"), None]:
        if word is not None:
            words.append(word)
        elif words:
            commands.append(_command(words))
            words = []
    return commands


def _command(words: list[str]) -> Command:
    program = words[0].lstrip(_PREFIXES)
    prefixes = words[0][: len(words[0]) - len(program)]
    first_argument = 2 if "@" in prefixes else 1
    return Command(prefixes, program, tuple(words[first_argument:]))


def split_words(value: str, separator: str = "") -> list[str | None]:
    """Split a value at white space, with quotes and escapes taken away; None stands for a lone separator.

    Raises:
        FormatError: a quote is not closed.
    """
    words: list[str | None] = []
    position = 0
    while True:
        while position < len(value) and value[position] in _SPACE:
            position += 1
        if position == len(value):
            return words
        start = position
        word, position = first_word(value, position)
        written = value[start:position]
        if separator and written == separator:
            words.append(None)
        elif separator and written == "\\" + separator:
            words.append(separator)
        else:
            words.append(word)


def first_word(value: str, position: int) -> tuple[str, int]:
    """Give the word that starts at a position and the position behind it."""
    word: list[str] = []
    quote = ""
    while position < len(value):
        character = value[position]
        if character == "\\":
            text, position = _unescape(value, position)
            word.append(text)
            continue
        position += 1
        if character == quote:
            quote = ""
        elif quote:
            word.append(character)
        elif character in "'\"":
            quote = character
        elif character in _SPACE:
            return _joined(word), position - 1
        else:
            word.append(character)
    if quote:
        raise FormatError(f"quote {quote} is not closed")
    return _joined(word), position


def _joined(parts: list[str]) -> str:
    """Join parts; bytes that were escaped one by one and make UTF-8 together become characters."""
    return "".join(parts).encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


def _unescape(value: str, position: int) -> tuple[str, int]:
    """Read the escape at a position; one that systemd does not know stays as it is written."""
    if position + 1 == len(value):
        return "\\", position + 1
    letter = value[position + 1]
    if letter in _ESCAPES:
        return _ESCAPES[letter], position + 2
    if letter in _NUMERIC_ESCAPES:
        return _numeric(value, position, position + 2, _NUMERIC_ESCAPES[letter], 16)
    return _numeric(value, position, position + 1, 3, 8)


def _numeric(value: str, position: int, start: int, digits: int, base: int) -> tuple[str, int]:
    written = value[start : start + digits]
    known = "0123456789abcdefABCDEF" if base == 16 else "01234567"
    if len(written) == digits and all(digit in known for digit in written):
        code = int(written, base)
        if digits < 4 and 0 < code <= 0xFF:
            return bytes([code]).decode("utf-8", "surrogateescape"), start + digits
        if digits >= 4 and 0 < code <= 0x10FFFF and not 0xD800 <= code <= 0xDFFF:
            return chr(code), start + digits
    return value[position : position + 2], position + 2
