"""Words of POSIX shell: what they are made of, and how a part of one is replaced without touching the rest.

Sources: POSIX.1-2017, Shell Command Language 2.2 (quoting), 2.3 (tokens) and 2.6 (expansions); bash(1) for
``$'...'``, ``$"..."`` and ``$[...]``. Nothing is ever expanded here: what only a shell could compute becomes
an :class:`Expansion`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tpu_image.formats import FormatError
from tpu_image.formats.edits import Edit, apply_edits

NAME = r"[A-Za-z_][A-Za-z0-9_]*"

_PLAIN = re.compile(r"[^ \t\n;&|<>()\\'\"`$]+")
_IN_DOUBLE = re.compile(r"[^\\\"`$]+")
_REFERENCE = re.compile(rf"\$(?:({NAME})|\{{({NAME})\}})")
_TILDE = re.compile(r"(?:(?<=:)|\A)~[^/:]*")
_SPECIAL = re.compile(r"\$[0-9?$!#@*-]")
_ASSIGNING = re.compile(rf"\$\{{({NAME}):?=")
_ARITHMETIC = re.compile(r"\$\(\(|\$\[")
_IDENTIFIER = re.compile(rf"\b{NAME}")
_SAFE = re.compile(r"[A-Za-z0-9_@%+=:,./-]*")
_ESCAPED_IN_DOUBLE = re.compile(r'[\\"$`]')


class Literal(NamedTuple):
    """Characters that stand for themselves: one escaped character, or a run written as it is."""

    value: str
    start: int
    end: int
    quote: str
    """The quotes around it: ``'``, ``"`` or nothing."""


class Reference(NamedTuple):
    """``$name`` or ``${name}``."""

    name: str
    start: int
    end: int
    quote: str


class Expansion(NamedTuple):
    """Something that only a shell can compute."""

    reason: str
    start: int
    end: int
    quote: str


Part = Literal | Reference | Expansion


class Word(NamedTuple):
    """A word from ``start`` up to ``end`` of ``text``, without what is not part of its value (quotes)."""

    text: str
    start: int
    end: int
    parts: tuple[Part, ...]

    @property
    def raw(self) -> str:
        """The word as written."""
        return self.text[self.start : self.end]

    @property
    def literal(self) -> str | None:
        """The value, where every part of the word is literal."""
        if all(isinstance(part, Literal) for part in self.parts):
            return "".join(part.value for part in self.parts if isinstance(part, Literal))
        return None


def width(part: Part) -> int:
    """Positions that a part takes in a word's value: one a character, one for anything to be expanded."""
    return len(part.value) if isinstance(part, Literal) else 1


def line_of(text: str, position: int) -> int:
    """The line, counted from 1, that a position of a text is on."""
    return text.count("\n", 0, position) + 1


def assigned_inside(raw: str) -> frozenset[str]:
    """Variables that the expansions of a text may assign: ``${X:=y}`` and anything in arithmetic."""
    names = set(_ASSIGNING.findall(raw))
    if _ARITHMETIC.search(raw):
        names.update(_IDENTIFIER.findall(raw))
    return frozenset(names)


def scan_word(text: str, start: int, *, assigned: bool = False) -> Word:
    """Read the word at a position, up to a blank or an operator that no quotes protect.

    ``assigned`` says that it is the right side of an assignment, where a shell expands ``~`` after ``:`` too.

    Raises:
        FormatError: a quote or substitution is not closed, or is nested in a way not followed here.
    """
    parts: list[Part] = []
    position = start
    while position < len(text) and text[position] not in " \t\n;&|<>()":
        if text[position] == '"':
            position = _scan_double(text, position, parts)
        else:
            position = _scan_unquoted(text, position, parts)
    return Word(text, start, position, tuple(_with_tildes(parts) if assigned else parts))


def _with_tildes(parts: list[Part]) -> list[Part]:
    """Make expansions of the tildes that stand first in a value or after a colon."""
    result: list[Part] = []
    for part in parts:
        if not (isinstance(part, Literal) and part.quote == "" and part.end - part.start == len(part.value)):
            result.append(part)
            continue
        done = 0
        for match in _TILDE.finditer(part.value):
            follows_colon = result and isinstance(result[-1], Literal) and result[-1].value.endswith(":")
            if match.start() == 0 and result and not follows_colon:
                continue
            if match.start() > done:
                before = part.value[done : match.start()]
                result.append(Literal(before, part.start + done, part.start + match.start(), ""))
            start, done = part.start + match.start(), match.end()
            result.append(Expansion("a tilde", start, part.start + done, ""))
        if done < len(part.value):
            result.append(Literal(part.value[done:], part.start + done, part.end, ""))
    return result


def _scan_unquoted(text: str, position: int, parts: list[Part]) -> int:
    run = _PLAIN.match(text, position)
    if run:
        parts.append(Literal(run.group(), position, run.end(), ""))
        return run.end()
    if text[position] == "'":
        end = _closing(text, position, "'")
        if end - position > 2:
            parts.append(Literal(text[position + 1 : end - 1], position + 1, end - 1, "'"))
        return end
    if text[position] == "\\":
        if position + 1 == len(text):
            raise FormatError("a backslash ends the file", line_of(text, position))
        if text[position + 1] != "\n":
            parts.append(Literal(text[position + 1], position, position + 2, ""))
        return position + 2
    if text.startswith("$'", position) or text.startswith('$"', position):
        end = _skip_backslashed(text, position + 1)
        parts.append(Expansion("a $-quoted string", position, end, ""))
        return end
    return _scan_expansion(text, position, parts, "")


def _scan_double(text: str, opening: int, parts: list[Part]) -> int:
    position = opening + 1
    while True:
        if position >= len(text):
            raise FormatError('a " is not closed', line_of(text, opening))
        run = _IN_DOUBLE.match(text, position)
        if run:
            parts.append(Literal(run.group(), position, run.end(), '"'))
            position = run.end()
        elif text[position] == '"':
            return position + 1
        elif text[position] == "\\":
            position = _scan_escape_in_double(text, position, parts)
        else:
            position = _scan_expansion(text, position, parts, '"')


def _scan_escape_in_double(text: str, position: int, parts: list[Part]) -> int:
    following = text[position + 1 : position + 2]
    if following == "\n":
        return position + 2
    if following and following in '$`"\\':
        parts.append(Literal(following, position, position + 2, '"'))
        return position + 2
    parts.append(Literal("\\", position, position + 1, '"'))
    return position + 1


def _scan_expansion(text: str, position: int, parts: list[Part], quote: str) -> int:
    """Read what begins with a dollar sign or a backtick."""
    if reference := _REFERENCE.match(text, position):
        parts.append(Reference(reference.group(1) or reference.group(2), position, reference.end(), quote))
        return reference.end()
    if special := _SPECIAL.match(text, position):
        parts.append(Expansion("a special parameter", position, special.end(), quote))
        return special.end()
    if text[position] == "`":
        end = _skip_backslashed(text, position)
        parts.append(Expansion("a command substitution", position, end, quote))
        return end
    if text[position + 1 : position + 2] in ("(", "{", "["):
        end = skip_nested(text, position + 1)
        kinds = {"(": "a command substitution", "{": "a parameter expansion", "[": "arithmetic"}
        kind = "arithmetic" if text.startswith("$((", position) else kinds[text[position + 1]]
        parts.append(Expansion(kind, position, end, quote))
        return end
    parts.append(Literal("$", position, position + 1, quote))
    return position + 1


def _closing(text: str, opening: int, closer: str) -> int:
    """The position after the next ``closer`` behind an opening character."""
    end = text.find(closer, opening + 1)
    if end < 0:
        raise FormatError(f"a {closer} is not closed", line_of(text, opening))
    return end + 1


def _skip_backslashed(text: str, opening: int) -> int:
    """The position after the character that closes the one at ``opening``, backslashes respected."""
    position = opening + 1
    while position < len(text):
        if text[position] == text[opening]:
            return position + 1
        position += 2 if text[position] == "\\" else 1
    raise FormatError(f"a {text[opening]} is not closed", line_of(text, opening))


_CLOSERS = {"(": ")", "{": "}", "[": "]"}
_CASE = re.compile(r"(?<![\w-])case[ \t\n]")
_WORD_START = " \t\n;&|("


def skip_nested(text: str, opening: int) -> int:
    """The position after the bracket that closes the one at ``opening``, with everything nested in it.

    Raises:
        FormatError: it is not closed, or holds what could hide a bracket (case, comments, here-documents).
    """
    stack = [_CLOSERS[text[opening]]]
    position = opening + 1
    while stack:
        if position >= len(text):
            raise FormatError(f"a {text[opening]} is not closed", line_of(text, opening))
        position = _step_nested(text, position, stack)
    return position


def _step_nested(text: str, position: int, stack: list[str]) -> int:
    character = text[position]
    inside_double = stack[-1] == '"'
    if character == stack[-1]:
        stack.pop()
    elif character == "\\":
        return position + 2
    elif character == "`":
        return _skip_backslashed(text, position)
    elif character == "$" and text[position + 1 : position + 2] in _CLOSERS:
        stack.append(_CLOSERS[text[position + 1]])
        return position + 2
    elif not inside_double and character == "'":
        if '"' in stack:
            raise FormatError("quotes nested in a way that shells read differently", line_of(text, position))
        return _closing(text, position, "'")
    elif not inside_double and character == '"':
        stack.append('"')
    elif stack[-1] == ")":
        _refuse_hidden(text, position)
        if character == "(":
            stack.append(")")
    return position + 1


def _refuse_hidden(text: str, position: int) -> None:
    comment = text[position] == "#" and text[position - 1] in _WORD_START
    if comment or text.startswith("<<", position) or _CASE.match(text, position):
        raise FormatError("a substitution that is too involved to follow", line_of(text, position))


def quoted(text: str, like: str = '"') -> str:
    """Write a text as one word, in the style of quotes given where that can hold it."""
    if like == "'" and "'" not in text:
        return f"'{text}'"
    if like == "" and _SAFE.fullmatch(text):
        return text
    return f'"{_ESCAPED_IN_DOUBLE.sub(_escape, text)}"'


def _escape(match: re.Match[str]) -> str:
    return "\\" + match.group()


def style_of(word: Word) -> str:
    """The quotes that hold all of a word: ``'``, ``"`` or nothing."""
    for quote in ("'", '"'):
        if len(word.raw) >= 2 and word.raw[0] == quote and word.raw.find(quote, 1) == len(word.raw) - 1:
            return quote
    return "" if word.raw and all(part.quote == "" for part in word.parts) else '"'


def edit_value(word: Word, edits: Sequence[Edit]) -> str:
    """Write the word with edits to its value, whose positions count as :func:`width` does.

    What is not edited stays as written where that is possible; else the whole word is written anew. Edits
    take away or add literal characters alone.
    """
    wanted = apply_edits(shape(word.parts), edits)
    raw = apply_edits(word.text, _raw_edits(word, edits))[word.start :]
    raw = raw[: len(raw) - (len(word.text) - word.end)]
    if _shape_of(raw) == wanted:
        return raw
    return _written_anew(word, wanted)


def shape(parts: Iterable[Part]) -> str:
    """Give the value with NUL for everything to be expanded: one character a position."""
    return "".join(part.value if isinstance(part, Literal) else "\0" for part in parts)


def _shape_of(raw: str) -> str | None:
    try:
        word = scan_word(raw, 0, assigned=True)
    except FormatError:
        return None
    return shape(word.parts) if word.end == len(raw) else None


def _raw_edits(word: Word, edits: Sequence[Edit]) -> list[Edit]:
    result: list[Edit] = []
    if not word.parts:
        text = "".join(edit.text for edit in edits)
        return [Edit(word.start, word.end, quoted(text, style_of(word)))]
    for edit in edits:
        position = 0
        inserted = not edit.text
        for part in word.parts:
            end = position + width(part)
            # An insertion belongs to the part that ends where it goes, so it comes inside that part's quotes.
            if not inserted and position <= edit.start <= end:
                at = part.end if edit.start == end else part.start + edit.start - position
                result.append(Edit(at, at, _in_context(edit.text, part.quote)))
                inserted = True
            cut_from, cut_to = max(edit.start, position), min(edit.end, end)
            if cut_from < cut_to:
                verbatim = part.end - part.start == width(part)
                start = part.start + (cut_from - position if verbatim else 0)
                result.append(Edit(start, start + cut_to - cut_from if verbatim else part.end, ""))
            position = end
    return result


def _in_context(text: str, quote: str) -> str:
    if quote == '"':
        return _ESCAPED_IN_DOUBLE.sub(_escape, text)
    if quote == "'":
        return text.replace("'", "'\\''")
    return quoted(text, "")


def _written_anew(word: Word, wanted: str) -> str:
    """Write a value in double quotes, its expansions as they were, in their order."""
    expansions = [part for part in word.parts if not isinstance(part, Literal)]
    pieces = []
    for index, literal in enumerate(wanted.split("\0")):
        if index:
            part = expansions[index - 1]
            raw = f"${{{part.name}}}" if isinstance(part, Reference) else word.text[part.start : part.end]
            pieces.append(f'"{raw}"' if part.quote == '"' or isinstance(part, Reference) else raw)
        if literal or not expansions:
            pieces.append(quoted(literal))
    return "".join(pieces)
