"""udev rules files: what udev makes of every line, and where it stands.

A rule is a line with those that its continuation backslashes join to it; comments and blank lines are none.
Every token knows its place in the file, so that an edit changes nothing else.

Sources: udev(7); the behaviour of systemd's ``udev-rules.c`` in versions 249 to 257: what is tolerated and what voids a
line.
"""

from __future__ import annotations

import bisect
import functools
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from tpu_image.formats.udev_tokens import FIXED_KEYS, JUMPS, LABELS, Token, judge

WHITESPACE = " \t\n\r"
Guard = tuple[str, str, str, str]
"""Key, operator, value and prefix of a comparison."""
LINE_LIMIT = 16384
"""Bytes of one line with its continuations at which udev gives the line up (``UDEV_LINE_SIZE``)."""


class RuleLines(NamedTuple):
    """The lines of one rule, ``line`` to ``last_line``, joined into ``text``; its tokens are yet to be read."""

    line: int
    last_line: int
    text: str
    segments: tuple[tuple[int, int, int], ...]
    """Offset in ``text``, offset in the file and line of each piece that was joined."""
    error: str = ""
    """Why udev ignores the rule, where its lines alone say so."""
    guard: Guard | None = None
    """The comparison that it begins with, where that is one with what an event never changes."""


class Rule:
    """One rule, read.

    Attributes:
        line, last_line, text, segments: its :class:`RuleLines`.
        tokens: as they are written.
        ordered: as udev applies them: comparisons first, each key in its own place.
        error: why udev ignores the line; empty when it does not.
        effects: union of the effects of the tokens; see :mod:`tpu_image.formats.udev_tokens`.
        guards: each comparison with what an event never changes.
        since: systemd version that first takes every token; 0 where all do.
        target: index, in its file, of the rule that its ``GOTO`` leads to; None where no label follows.
    """

    __slots__ = (
        "effects",
        "error",
        "goto",
        "guards",
        "label",
        "last_line",
        "line",
        "ordered",
        "segments",
        "since",
        "target",
        "text",
        "tokens",
    )

    def __init__(self, lines: RuleLines) -> None:
        self.line, self.last_line, self.text, self.segments, self.error, _ = lines
        self.tokens: list[Token] = []
        self.guards: list[Guard] = []
        self.effects = self.since = 0
        self.goto = self.label = ""
        self.target: int | None = None
        if not self.error:
            self.error = _read_tokens(self)
        self.ordered = sorted(self.tokens, key=_order)
        if not self.error and not self.effects:
            self.error = "it only compares and assigns nothing"
            if self.text.rstrip(WHITESPACE).endswith(","):
                self.error += "; is the backslash that continues it missing?"

    def file_offset(self, offset: int) -> int:
        """Translate an offset into ``text`` to one into the file."""
        start, origin, _ = self._segment(offset)
        return origin + offset - start

    def line_of(self, token: Token) -> int:
        """Give the physical line, from 1, on which a token begins."""
        return self._segment(token.start)[2]

    def _segment(self, offset: int) -> tuple[int, int, int]:
        if len(self.segments) == 1:
            return self.segments[0]
        return next(segment for segment in reversed(self.segments) if segment[0] <= offset)


class RulesFile:
    """A file split into rules, each of which is read when it is first asked for.

    Most rules of a system begin with a comparison that an event fails, or are jumped over.

    Attributes:
        error, error_line: why udev reads no further, where that is so.
        passing: rules, by index, whose first guard passes in an event already seen: for whoever evaluates them.
    """

    def __init__(self, text: str, lines: tuple[RuleLines, ...], error: str, error_line: int) -> None:
        self.text = text
        self.lines = lines
        self.error = error
        self.error_line = error_line
        self.passing: dict[object, list[int]] = {}
        self._rules: list[Rule | None] = [None] * len(lines)

    @property
    def rules(self) -> list[Rule]:
        """Every rule."""
        return [self.rule(index) for index in range(len(self.lines))]

    def rule(self, index: int) -> Rule:
        """Give a rule by its place."""
        rule = self._rules[index]
        if rule is None:
            rule = self._rules[index] = Rule(self.lines[index])
            if rule.effects & JUMPS:
                self._find_target(rule, index)
        return rule

    def _find_target(self, rule: Rule, index: int) -> None:
        following = self._labels.get(rule.goto, [])
        place = bisect.bisect_right(following, index)
        if place < len(following):
            rule.target = following[place]
        else:
            rule.effects &= ~JUMPS  # udev forgets the GOTO, and a line that does nothing else

    @functools.cached_property
    def _labels(self) -> dict[str, list[int]]:
        """Name of a label to the places of the rules that are one, in order."""
        labels: dict[str, list[int]] = {}
        for index, lines in enumerate(self.lines):
            if "LABEL" in lines.text:
                rule = Rule(lines)
                if rule.effects & LABELS and not rule.error:
                    labels.setdefault(rule.label, []).append(index)
        return labels


@functools.lru_cache(maxsize=512)
def parse(text: str) -> RulesFile:
    """Split a rules file; every text is one: what udev does not understand is a rule with an ``error``."""
    rules: list[RuleLines] = []
    pieces: list[str] = []
    segments: list[tuple[int, int, int]] = []
    length = 0
    error = ""
    error_line = number = 0
    for number, (start, stop, _) in enumerate(_physical_lines(text), start=1):
        if stop - start >= LINE_LIMIT // 4 and len(_encoded(text[start:stop])) >= LINE_LIMIT and not error:
            error, error_line = f"a line of {LINE_LIMIT} bytes or more: udev stops reading the file", number
        piece = text[start:stop].lstrip(WHITESPACE)
        if piece.startswith("#") or not (piece or segments):
            continue  # a comment inside a continued rule is not part of it
        start = stop - len(piece)
        continued = piece.endswith("\\")
        segments.append((length, start, number))
        if length < LINE_LIMIT:  # more is not read: the rule is void by then
            pieces.append(piece[:-1] if continued else piece)
            length += len(pieces[-1])
        if not continued:
            rules.append(_joined("".join(pieces), segments, number))
            pieces, segments, length = [], [], 0
    if segments:
        reason = "the file ends inside a continued line"
        rules.append(RuleLines(segments[0][2], segments[-1][2], "".join(pieces), tuple(segments), reason))
    return RulesFile(text, tuple(rules), error, error_line)


def _joined(text: str, segments: list[tuple[int, int, int]], last_line: int) -> RuleLines:
    error = ""
    if len(segments) > 1 and len(_encoded(text)) >= LINE_LIMIT:
        error = f"longer than {LINE_LIMIT - 1} bytes with its continuations"
    begins = _first_guard().match(text)
    guard = (begins[1], begins[2], begins[3], "") if begins else None
    return RuleLines(segments[0][2], last_line, text, tuple(segments), error, guard)


@functools.lru_cache(maxsize=1)
def _first_guard() -> re.Pattern[str]:
    """The first token of :func:`_token_pattern`, where it compares a fixed key with a plain value."""
    return re.compile(rf'({"|".join(sorted(FIXED_KEYS))})[ \t\n\r]*(==|!=)[ \t\n\r]*"([^"\\]*)"')


def _physical_lines(text: str) -> Iterator[tuple[int, int, int]]:
    r"""Give start, end and start of the next for every line; ``\n``, ``\r`` and NUL end one in systemd."""
    start = 0
    if "\r" not in text and "\0" not in text:
        while (stop := text.find("\n", start)) >= 0:
            yield start, stop, stop + 1
            start = stop + 1
    else:
        for end in re.finditer("\n(?:\r\0?|\0\r?)?|\r(?:\n\0?|\0\n?)?|\0(?:\n\r?|\r\n?)?", text):
            yield start, end.start(), end.end()
            start = end.end()
    if start < len(text):
        yield start, len(text), len(text)


def _order(token: Token) -> int:
    return token.order


@functools.lru_cache(maxsize=1)
def _token_pattern() -> re.Pattern[str]:
    return re.compile(
        r"""[ \t\n\r,]*
        ((?:[^ \t\n\r={+\-!:]|[+\-!:](?!=))+)       # key
        (?:\{([^}]*)\})?
        [ \t\n\r]* (==|!=|\+=|-=|:=|=) [ \t\n\r]*
        (?:(i?)"([^"\\]*(?:\\(?:"|(?!"))[^"\\]*)*)"  # value, in which \" alone is an escape
          |(e|ei|ie)"((?:[^"\\]|\\.)*)")            # value with C escapes""",
        re.VERBOSE | re.DOTALL,
    )


def _read_tokens(rule: Rule) -> str:
    """Fill in the tokens of a rule; the answer is why udev ignores the line, or empty."""
    match_at = _token_pattern().match
    text, position = rule.text, 0
    while position < len(text):
        found = match_at(text, position)
        if found is None:
            return "" if not text[position:].strip(WHITESPACE + ",") else _unreadable(text, position)
        key, attribute, operator, ignore_case, plain, prefix, escaped = found.groups()
        value = plain.replace('\\"', '"') if prefix is None else _without_escapes(escaped)
        if value is None:
            return f"{key} has an escape sequence that does not exist"
        token = Token(key, attribute, operator, value, prefix or ignore_case, (found.start(1), found.end()))
        reason = judge(token)
        if reason:
            return reason
        _note_effects(rule, token)
        rule.tokens.append(token)
        position = found.end()
    return ""


def _note_effects(rule: Rule, token: Token) -> None:
    rule.effects |= token.effect
    rule.since = max(rule.since, token.since)
    if token.key in FIXED_KEYS:
        rule.guards.append((token.key, token.operator, token.value, token.prefix))
    if token.key == "GOTO" and not rule.goto:
        rule.goto = token.value
    elif token.effect == LABELS:
        rule.label = token.value


def _unreadable(text: str, position: int) -> str:
    rest = text[position:].lstrip(WHITESPACE + ",")
    shown = rest if len(rest) <= 40 else rest[:40] + "…"
    if rest.startswith("#"):
        return f"a comment cannot follow a rule on its line: {shown}"
    if rest.replace('\\"', "").count('"') % 2:
        return f"a closing quotation mark is missing in: {shown}"
    return f'not KEY, operator and "value": {shown}'


_SIMPLE_ESCAPES = dict(zip("abfnrtvs\\\"'", "\a\b\f\n\r\t\v \\\"'", strict=True))


def _without_escapes(raw: str) -> str | None:
    """Give the value of ``e"…"``; None where a C escape is not one."""
    out: list[str] = []
    position = 0
    escape = re.compile(
        r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([0-7]{3})|(.))", re.DOTALL
    )
    while (backslash := raw.find("\\", position)) >= 0:
        out.append(raw[position:backslash])
        found = escape.match(raw, backslash)
        character = found and _escaped_character(*found.groups())
        if not found or not character:
            return None
        out.append(character)
        position = found.end()
    out.append(raw[position:])
    return _encoded("".join(out)).decode("utf-8", "surrogateescape")


def _escaped_character(
    byte: str | None, short: str | None, long: str | None, octal: str | None, letter: str | None
) -> str:
    """Give the character of one C escape; empty where it is none that udev takes (NUL among them)."""
    if letter is not None:
        return _SIMPLE_ESCAPES.get(letter, "")
    number = int(octal, 8) if octal else int(byte or short or long or "0", 16)
    if byte or octal:
        return bytes([number]).decode("utf-8", "surrogateescape") if 0 < number < 256 else ""
    return chr(number) if 0 < number <= 0x10FFFF and not 0xD800 <= number < 0xE000 else ""


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def is_unknown_name(token: Token, names: Collection[str]) -> bool:
    """Whether an ``OWNER`` or ``GROUP`` is a name (no number, no substitution) that is not in ``names``."""
    return not token.value.isdecimal() and not set("%$") & set(token.value) and token.value not in names
