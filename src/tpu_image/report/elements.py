"""Pieces of an HTML page. What is shown comes from images and guests: it becomes printable text before it is escaped.

Functions give HTML, and what they take as ``html`` is HTML already; everything else they take is text.
"""

from __future__ import annotations

import html
import pkgutil
import re
from collections.abc import Iterable, Sequence

from tpu_image.report.printable import printable

_LINE_LIMIT = 2000
_LINES_LIMIT = 5000
"""Characters of a line and lines of a text that a page shows; of a longer text the end."""

_WHOLE_LIMIT = 24
"""Characters that fit on the line of a telephone."""

_CONTROL_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
"""ECMA-48, 5.4: what colours a console's text and moves its cursor."""

_MARKS = {"pass": "✓", "fail": "✗", "warn": "!", "skip": "-", "unknown": "?"}


def text(words: object) -> str:
    """Show one line of text."""
    return html.escape(printable(str(words)))


def code(words: object, *, whole: bool = False) -> str:
    """Show a path, a value or a command; ``whole``: never broken over two lines, unless it is long."""
    kept = ' class="whole"' if whole and len(str(words)) <= _WHOLE_LIMIT else ""
    return f"<code{kept}>{text(words)}</code>" if words != "" else ""


def status(word: str, shown: str = "") -> str:
    """Show a status as a sign, a word and a colour; ``shown`` is another word for it."""
    return f'<span class="status {word}">{_MARKS[word]}&nbsp;{text(shown or word)}</span>'


def lines(words: str) -> str:
    """Show text of several lines as it was printed, without what coloured it."""
    plain = _CONTROL_SEQUENCE.sub("", words.replace("\r\n", "\n"))
    every = [
        line.rpartition("\r")[2] if not line.endswith("\r") else line.rstrip("\r")
        for line in plain.split("\n")
    ]
    kept = every[-_LINES_LIMIT:]
    left = len(every) - len(kept)
    note = f'<p class="soft">{left} earlier lines are left out.</p>' if left else ""
    shown = "\n".join(html.escape(printable(line.replace("\t", "    "), _LINE_LIMIT)) for line in kept)
    return f"{note}<pre>{shown}</pre>"


def bullets(items: Iterable[str]) -> str:
    """Show HTML items as a list; nothing where there are none."""
    shown = "".join(f"<li>{item}</li>" for item in items)
    return f"<ul>{shown}</ul>" if shown else ""


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Show names and HTML values; those without a value are left out."""
    shown = "".join(f"<dt>{text(name)}</dt><dd>{value}</dd>" for name, value in pairs if value)
    return f"<dl>{shown}</dl>"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()) -> str:
    """Show rows of HTML cells; on a narrow page each row becomes a block with the columns' names in it.

    A table that is wider than the page nevertheless, by a word without end, is moved in its place.

    Args:
        columns: their names.
        rows: as many cells as columns in each.
        numbers: columns that hold numbers, from 0.
    """
    head = "".join(
        f'<th scope="col"{_number(place, numbers)}>{text(name)}</th>' for place, name in enumerate(columns)
    )
    body = "".join(f"<tr>{''.join(_cells(columns, row, numbers))}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cells(columns: Sequence[str], row: Sequence[str], numbers: Sequence[int]) -> Iterable[str]:
    for place, (name, cell) in enumerate(zip(columns, row, strict=True)):
        yield f'<td{_number(place, numbers)} data-label="{text(name)}">{cell}</td>'


def _number(place: int, numbers: Sequence[int]) -> str:
    return ' class="number"' if place in numbers else ""


def folded(summary: str, inside: str, *, opened: bool = False) -> str:
    """Put HTML behind a line, HTML too, that opens it."""
    return f"<details{' open' if opened else ''}><summary>{summary}</summary>{inside}</details>"


def section(title: str, *inside: str) -> str:
    """Give HTML a heading; nothing where there is nothing inside."""
    body = "".join(inside)
    return f"<section><h2>{text(title)}</h2>{body}</section>\n" if body else ""


def page(title: str, *inside: str) -> str:
    """Make a document that needs nothing from elsewhere, and may fetch nothing."""
    style = (pkgutil.get_data("tpu_image.report", "page.css") or b"").decode()
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"{''.join(inside)}</body>\n</html>\n"
    )
