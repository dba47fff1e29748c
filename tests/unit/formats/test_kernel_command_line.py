"""The kernel command line, cut as the kernel cuts it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpu_image.formats.edits import Edit, apply_edits
from tpu_image.formats.kernel_cmdline import BLANKS, KernelCommandLine

lines = st.text(alphabet='ab-_=," \t\n', max_size=40)


def next_arg(line: str) -> list[tuple[str, str | None]]:
    """What lib/cmdline.c does, character by character."""
    result: list[tuple[str, str | None]] = []
    position = 0
    while True:
        while position < len(line) and line[position] in BLANKS:
            position += 1
        if position == len(line):
            return result
        quoted = in_quote = line[position] == '"'
        start = position = position + int(quoted)
        equals = 0
        while position < len(line) and (in_quote or line[position] not in BLANKS):
            if line[position] == "=" and equals == 0:
                equals = position - start
            if line[position] == '"':
                in_quote = not in_quote
            position += 1
        text = line[start:position]
        value = None
        if equals:
            text, value = text[:equals], text[equals + 1 :]
            if value.startswith('"'):
                value = value[1:].removesuffix('"')
            elif quoted:
                value = value.removesuffix('"')
        elif quoted:
            text = text.removesuffix('"')
        result.append((text.replace("-", "_"), value))


@given(lines)
def test_a_line_is_cut_as_the_kernel_cuts_it(text: str) -> None:
    line = KernelCommandLine.parse(text)
    assert [(token.name, token.value) for token in line.tokens] == next_arg(text)


@given(lines)
def test_a_line_keeps_its_text_and_its_tokens_their_places(text: str) -> None:
    line = KernelCommandLine.parse(text)
    assert line.text == text
    assert all(text[token.start : token.end] == token.text for token in line.tokens)
    assert apply_edits(text, [Edit(t.start, t.end, t.text) for t in line.tokens]) == text


def test_repeated_keys_and_their_order_are_kept() -> None:
    line = KernelCommandLine.parse("console=tty1 quiet console=ttyS0,38400n8")
    assert line.values("console") == ["tty1", "ttyS0,38400n8"]
    last = line.last("console")
    assert last is not None
    assert last.value == "ttyS0,38400n8"


def test_a_dash_in_a_name_is_an_underscore() -> None:
    assert KernelCommandLine.parse("transparent-hugepage=always").values("transparent_hugepage") == ["always"]


def test_what_follows_two_dashes_is_for_init() -> None:
    line = KernelCommandLine.parse("quiet -- idle=poll")
    assert line.values("idle") == []
    assert line.appended("idle=poll").text == "quiet idle=poll -- idle=poll"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "x=1"),
        ("  quiet  ro  ", "  quiet  ro x=1  "),
        ("-- a", "x=1 -- a"),
        ('a="b c"', 'a="b c" x=1'),
        ('a b="c d', 'a x=1 b="c d'),
        ('"a', 'x=1 "a'),
    ],
)
def test_a_token_is_appended_and_the_spacing_kept(before: str, after: str) -> None:
    assert KernelCommandLine.parse(before).appended("x=1").text == after


@given(lines, st.data())
def test_a_token_is_replaced_and_the_rest_kept(text: str, data: st.DataObject) -> None:
    line = KernelCommandLine.parse(text)
    if not line.tokens:
        return
    token = data.draw(st.sampled_from(line.tokens))
    assert line.replaced(token, "x=1").text == text[: token.start] + "x=1" + text[token.end :]


def test_edits_that_overlap_are_refused() -> None:
    with pytest.raises(ValueError, match="overlap"):
        apply_edits("abcd", [Edit(0, 2, ""), Edit(1, 3, "")])
