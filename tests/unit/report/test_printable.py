from __future__ import annotations

import pytest
from hypothesis import given, strategies

from reports import HOSTILE
from tpu_image.report.printable import LIMIT, printable

ESCAPED = [
    ("plain text, ünïcode", "plain text, ünïcode"),
    ("a\nb\tc\rd", "a\\nb\\tc\\rd"),
    ("\x1b[2J", "\\x1b[2J"),
    ("\x9b", "\\x9b"),
    ("\udcff", "\\xff"),
    ("\ud800", "\\ud800"),
    ("\u202e", "\\u202e"),
    ("\U000e0001", "\\U000e0001"),
]


@pytest.mark.parametrize(("text", "shown"), ESCAPED)
def test_what_does_not_print_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_long_text_is_cut_and_its_length_told() -> None:
    assert printable("x" * 5000) == "x" * LIMIT + "... (5000 characters)"


@given(strategies.text(strategies.characters(codec=None)) | strategies.sampled_from(HOSTILE))
def test_it_is_one_printable_line_that_any_encoding_of_unicode_takes(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    shown.encode("utf-8")
