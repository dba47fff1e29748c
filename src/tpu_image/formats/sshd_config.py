"""sshd_config(5): keywords and their arguments, in order."""

from __future__ import annotations

from typing import NamedTuple


class Directive(NamedTuple):
    """One line: the keyword in lower case and its arguments without quotes."""

    keyword: str
    arguments: tuple[str, ...]
    line: int


def parse_directives(text: str) -> list[Directive]:
    """Read the directives that hold for every connection: those before the first ``Match``."""
    directives: list[Directive] = []
    for number, line in enumerate(text.split("\n"), 1):
        words = _words(line)
        if not words:
            continue
        keyword = words[0].lower()
        if keyword == "match":
            break
        directives.append(Directive(keyword, tuple(words[1:]), number))
    return directives


def _words(line: str) -> list[str]:
    """Split a line; the keyword may be set apart by ``=``, arguments may be quoted."""
    content = line.strip()
    if content.startswith("#"):
        return []
    keyword = content.replace("=", " ").split(" ", 1)[0].split("\t", 1)[0]
    rest = content[len(keyword) :].lstrip(" \t").removeprefix("=")
    words = [keyword] if keyword else []
    for word in rest.split():
        if word.startswith("#"):
            break
        words.append(word.strip('"'))
    return words
