"""Files of ``/etc/pam.d``: which modules a service calls (pam.d(5))."""

from __future__ import annotations

from typing import NamedTuple

INCLUDE = "@include"
"""Kind of a rule that takes in another file whole (Debian's extension)."""


class Rule(NamedTuple):
    """One line: ``kind`` is ``auth``, ``account``, ``password``, ``session`` or :data:`INCLUDE`.

    ``module`` is the module's path, or the file that an include takes in.
    """

    kind: str
    control: str
    module: str
    arguments: tuple[str, ...]
    line: int

    @property
    def includes(self) -> bool:
        """Whether it takes in the rules of another file."""
        return self.kind == INCLUDE or self.control in ("include", "substack")

    @property
    def actions(self) -> frozenset[str]:
        """What PAM may do once the module has returned, as in ``[value=action]``: ``ok``, ``done``, or a number."""
        table = _KEYWORDS.get(self.control) or {
            value: action
            for value, _, action in (pair.partition("=") for pair in self.control.strip("[]").split())
        }
        otherwise = table.get("default", "bad")
        name = self.module.rpartition("/")[2].removesuffix(".so")
        if name in _CERTAIN:
            return frozenset((table.get(_CERTAIN[name], otherwise),))
        return frozenset((*table.values(), otherwise))


_KEYWORDS = {
    "required": {"success": "ok", "default": "bad"},
    "requisite": {"success": "ok", "default": "die"},
    "sufficient": {"success": "done", "default": "ignore"},
    "optional": {"success": "ok", "default": "ignore"},
}
"""The short controls, as far as they differ for sessions (pam.conf(5))."""

_CERTAIN = {"pam_permit": "success", "pam_deny": "session_err"}
"""Modules that return one value whatever happens."""


def parse_rules(text: str) -> list[Rule]:
    """Read a file; lines that PAM cannot use are left out."""
    rules: list[Rule] = []
    for number, content in _logical_lines(text):
        words = _words(content)
        if len(words) >= 2 and words[0].lower() == INCLUDE:
            rules.append(Rule(INCLUDE, "", words[1], (), number))
        elif len(words) >= 3:
            kind, control = words[0].lower().removeprefix("-"), words[1].lower()
            rules.append(Rule(kind, control, words[2], tuple(words[3:]), number))
    return rules


def _logical_lines(text: str) -> list[tuple[int, str]]:
    """Give each line with its number; a backslash at its end joins the next one."""
    lines: list[tuple[int, str]] = []
    pending: list[str] = []
    first = 1
    for number, line in enumerate(text.split("\n"), 1):
        if not pending:
            first = number
        content = line.partition("#")[0].rstrip()
        if not (content or pending):
            continue
        if content.endswith("\\"):
            pending.append(content[:-1])
            continue
        lines.append((first, " ".join([*pending, content])))
        pending.clear()
    if pending:
        lines.append((first, " ".join(pending)))
    return lines


def _words(line: str) -> list[str]:
    """Split at white space; ``[success=1 default=ignore]`` is one word."""
    words: list[str] = []
    rest = line.strip()
    while rest:
        if rest.startswith("[") and "]" in rest:
            word, _, rest = rest[1:].partition("]")
            words.append(f"[{word}]")
        else:
            word, *others = rest.split(maxsplit=1)
            words.append(word)
            rest = others[0] if others else ""
        rest = rest.lstrip()
    return words
