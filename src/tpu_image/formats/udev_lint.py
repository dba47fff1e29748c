"""What is wrong with a udev rules file, in words for people, and the one thing that an edit can mend.

Sources: those of :mod:`tpu_image.formats.udev_rules`; for what is refused, the behaviour of ``udevadm verify`` (systemd
254 and newer). From systemd 258 on a line that names an unknown user or group is void.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator
from typing import NamedTuple

from tpu_image.formats.udev_rules import WHITESPACE, Rule, RulesFile, is_unknown_name
from tpu_image.formats.udev_tokens import JUMPS, LABELS, Token, complaints


class Severity(enum.Enum):
    """What a finding means for the line."""

    IGNORED = "ignored"
    """udev drops the whole line."""
    WARNING = "warning"
    """udev logs it and goes on without the part in question."""
    STYLE = "style"
    """udev takes the line as it stands; ``udevadm verify`` refuses the file."""


class Finding(NamedTuple):
    """Something wrong with a line. ``line`` counts physical lines from 1."""

    line: int
    severity: Severity
    reason: str


def lint(file: RulesFile, users: Collection[str], groups: Collection[str]) -> list[Finding]:
    """Say what udev, or ``udevadm verify``, finds wrong with a file, in the order of its lines.

    ``users`` and ``groups`` are the names that the system has; where there are none, none is looked up.
    """
    found = [Finding(file.error_line, Severity.IGNORED, file.error)] if file.error else []
    referenced = {rule.target for rule in file.rules}
    for index, rule in enumerate(file.rules):
        if rule.error:
            found.append(Finding(rule.line, Severity.IGNORED, rule.error))
            continue
        if rule.goto and not rule.effects & JUMPS:
            found.append(Finding(rule.line, Severity.WARNING, f"no label {rule.goto} follows this GOTO"))
        for token in rule.tokens:
            found += _token_findings(rule, token, users, groups)
        found += _style_findings(rule)
        if rule.effects & LABELS and index not in referenced:
            found.append(Finding(rule.line, Severity.STYLE, f"no GOTO leads to the label {rule.label}"))
    return found


def _token_findings(
    rule: Rule, token: Token, users: Collection[str], groups: Collection[str]
) -> Iterator[Finding]:
    line = rule.line_of(token)
    for reason in complaints(token):
        yield Finding(line, Severity.WARNING, reason)
    if token.since > 254:
        yield Finding(line, Severity.WARNING, f"systemd before {token.since} ignores this line: {token.name}")
    names = {"OWNER": users, "GROUP": groups}.get(token.key)
    if names and is_unknown_name(token, names):
        reason = (
            f'{token.key}="{token.value}" does not exist: udev ignores it, from systemd 258 on the whole line'
        )
        yield Finding(line, Severity.WARNING, reason)


def _style_findings(rule: Rule) -> Iterator[Finding]:
    """Say what ``udevadm verify`` refuses in how the tokens of a rule are separated."""
    previous = 0
    for position, token in enumerate(rule.tokens):
        gap = rule.text[previous : token.start]
        reason = _gap_reason(gap) if position else ("a comma before the first key" if "," in gap else "")
        if reason:
            yield Finding(rule.line_of(token), Severity.STYLE, reason)
        previous = token.end
    if "," in rule.text[previous:]:
        yield Finding(rule.last_line, Severity.STYLE, "a comma after the last key")


def _gap_reason(gap: str) -> str:
    commas = gap.count(",")
    if not commas:
        return "a comma is missing"
    if commas > 1:
        return "more than one comma"
    before, after = gap.split(",")
    if before:
        return "white space before the comma"
    return "" if after else "no white space after the comma"


def with_missing_commas(file: RulesFile) -> str:
    """Give the text of the file with a comma wherever two keys of a rule have none between them."""
    places = [
        rule.file_offset(rule.tokens[position].end - 1) + 1
        for rule in file.rules
        if not rule.error
        for position, token in enumerate(rule.tokens[1:])
        if "," not in rule.text[rule.tokens[position].end : token.start]
    ]
    text = file.text
    for place in reversed(places):
        separator = "," if text[place] in WHITESPACE else ", "
        text = text[:place] + separator + text[place:]
    return text
