"""Rules files: what stays as it is, what udev ignores, and what it is told about."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpu_image.formats.udev_lint import Severity, lint, with_missing_commas
from tpu_image.formats.udev_rules import LINE_LIMIT, Rule, parse

PIECES = st.sampled_from(
    [
        'KERNEL=="accel*"',
        'MODE="0666"',
        'ATTRS{vendor}=="0x1ae0"',
        'ENV{A}+="b"',
        'RUN:="/bin/x $kernel"',
        'e"\\x41\\n"',
        "GOTO=",
        '"end"',
        "LABEL=",
        ", ",
        ",",
        " ",
        "\\\n",
        "\n",
        "\r\n",
        "\0",
        "# comment",
        "\\",
        "é",
        "\udcff",
    ]
)
TEXTS = st.lists(PIECES, max_size=30).map("".join) | st.text(max_size=200)


@given(TEXTS)
def test_every_piece_of_a_rule_stands_in_the_file_where_it_says(text: str) -> None:
    for rule in parse(text).rules:
        ends = [*(start for start, *_ in rule.segments[1:]), len(rule.text)]
        for (start, origin, _), end in zip(rule.segments, ends, strict=True):
            assert text[origin : origin + end - start] == rule.text[start:end]


@given(TEXTS, st.data())
def test_a_rule_is_the_same_whichever_is_read_first(text: str, data: st.DataObject) -> None:
    whole, file = parse(text), parse.__wrapped__(text)
    order = data.draw(st.permutations(range(len(whole.lines))))
    read = {index: _told(file.rule(index)) for index in order}
    assert [read[index] for index in range(len(order))] == [_told(rule) for rule in whole.rules]


def _told(rule: Rule) -> object:
    return rule.error, rule.effects, rule.target, [(t.name, t.operator, t.value) for t in rule.ordered]


@given(TEXTS)
def test_every_token_stands_in_the_file_where_it_says(text: str) -> None:
    for rule in parse(text).rules:
        for token in rule.tokens:
            assert text[rule.file_offset(token.start) :].startswith(token.key)


@given(TEXTS)
def test_commas_are_added_once_and_change_no_token(text: str) -> None:
    with_commas = with_missing_commas(parse(text))
    before = [[(t.name, t.operator, t.value) for t in r.tokens] for r in parse(text).rules]
    after = [[(t.name, t.operator, t.value) for t in r.tokens] for r in parse(with_commas).rules]
    assert after == before
    assert with_missing_commas(parse(with_commas)) == with_commas


@given(TEXTS)
def test_lint_never_fails(text: str) -> None:
    lint(parse(text), {"root"}, {"root"})


@pytest.mark.parametrize(
    ("written", "key", "attribute", "operator", "value"),
    [
        ('KERNEL=="sda"', "KERNEL", None, "==", "sda"),
        ('KERNEL  !=  "sda"', "KERNEL", None, "!=", "sda"),
        ('ATTR{a/b c}=="x"', "ATTR", "a/b c", "==", "x"),
        ('ENV{A}+="x"', "ENV", "A", "+=", "x"),
        ('TAG-="x"', "TAG", None, "-=", "x"),
        ('RUN:="x"', "RUN", None, ":=", "x"),
        (r'RUN="say \"hi\""', "RUN", None, "=", 'say "hi"'),
        (r'RUN="C:\dir"', "RUN", None, "=", r"C:\dir"),
        (r'RUN=e"a\x42\103\u00e9\t\"\\"', "RUN", None, "=", 'aBCé\t"\\'),
        ('KERNEL==i"SDA"', "KERNEL", None, "==", "SDA"),
        ('KERNEL==ei"\\x41"', "KERNEL", None, "==", "A"),
        ('ENV{A}=""', "ENV", "A", "=", ""),
    ],
)
def test_a_token_is_read(written: str, key: str, attribute: str | None, operator: str, value: str) -> None:
    (rule,) = parse(f'{written}, MODE="0600"\n').rules
    token = rule.tokens[0]
    assert (rule.error, token.key, token.attribute, token.operator, token.value) == (
        "",
        key,
        attribute,
        operator,
        value,
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("MODE=0666", "not KEY, operator"),
        ('MODE="0666', "closing quotation mark"),
        ('MODE="0666" # all', "comment cannot follow"),
        ('MODEX="0666"', "unknown key MODEX"),
        ('MODE=="0666"', "does not take the operator =="),
        ('MODE-="0666"', "does not take the operator -="),
        ('MODE{x}="0666"', "takes no attribute"),
        ('ATTR=="x"', "needs an attribute"),
        ('ATTR{}=="x"', "needs an attribute"),
        ('KERNEL="x"', "does not take the operator ="),
        ('KERNEL=="x"', "only compares"),
        ('KERNEL=="x",', "backslash that continues it missing"),
        ('IMPORT{nothing}="x"', "IMPORT{nothing} does not exist"),
        ('IMPORT{builtin}="nothing"', "unknown built-in command"),
        ('RUN{builtin}="nothing"', "unknown built-in command"),
        ('RUN{x}="nothing"', "RUN{x} does not exist"),
        ('CONST{x}=="y", MODE="0600"', "CONST knows arch and virt"),
        ('ENV{ACTION}="x"', "cannot be set"),
        ('NAME="%k"', "does nothing"),
        ('TEST{9}=="x", MODE="0600"', "not an octal mode"),
        ('OPTIONS+="link_priority=x"', "not a number"),
        ('MODE=i"0666"', 'prefix i"'),
        (r'MODE=e"\q"', "escape sequence"),
        (r'MODE=e"\x00"', "escape sequence"),
        (r'MODE="0666\"', "closing quotation mark"),
    ],
)
def test_udev_ignores_a_line_that_is_wrong(line: str, reason: str) -> None:
    (rule,) = parse(line + "\n").rules
    assert reason in rule.error
    assert [(f.line, f.severity) for f in lint(parse(line), (), ())] == [(1, Severity.IGNORED)]


@pytest.mark.parametrize(
    ("text", "line", "severity", "reason"),
    [
        ('KERNEL=="a" MODE="0666"', 1, Severity.STYLE, "a comma is missing"),
        ('KERNEL=="a"MODE="0666"', 1, Severity.STYLE, "a comma is missing"),
        ('KERNEL=="a",MODE="0666"', 1, Severity.STYLE, "no white space after"),
        ('KERNEL=="a" , MODE="0666"', 1, Severity.STYLE, "white space before"),
        ('KERNEL=="a",, MODE="0666"', 1, Severity.STYLE, "more than one comma"),
        (', KERNEL=="a", MODE="0666"', 1, Severity.STYLE, "before the first key"),
        ('KERNEL=="a", MODE="0666",', 1, Severity.STYLE, "after the last key"),
        ('KERNEL=="a", \\\n  MODE="0666", \\\n  TAG+="x" RUN+="y"', 3, Severity.STYLE, "a comma is missing"),
        ('LABEL="end"', 1, Severity.STYLE, "no GOTO leads"),
        ('\n\nGOTO="end"', 3, Severity.WARNING, "no label end follows"),
        ('LABEL="a"\nGOTO="a"\n', 2, Severity.WARNING, "no label a follows"),
        ('MODE+="0666"', 1, Severity.WARNING, "takes += as ="),
        ('RUN+="/bin/x %y"', 1, Severity.WARNING, "unknown substitution %y"),
        ('RUN+="/bin/x $attr{"', 1, Severity.WARNING, "brace"),
        ('OPTIONS+="nothing", MODE="0600"', 1, Severity.WARNING, "unknown option"),
        ('KERNEL==i"A", MODE="0666"', 1, Severity.WARNING, "before 257"),
        ('OWNER="nobody-here"', 1, Severity.WARNING, "does not exist"),
        ('KERNEL=="a", GROUP="tpu", MODE="0660"', 1, Severity.WARNING, 'GROUP="tpu" does not exist'),
    ],
)
def test_lint_says_what_is_wrong_and_where(text: str, line: int, severity: Severity, reason: str) -> None:
    found = lint(parse(text), {"root"}, {"root"})
    assert (line, severity) in [(f.line, f.severity) for f in found if reason in f.reason]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment\n\n",
        'KERNEL=="accel*", MODE="0666"\n',
        'KERNEL=="a", GROUP="0", OWNER="root", MODE="0600"\n',
        'KERNEL=="a", GROUP="$env{G}", MODE="0600"\n',
        'ACTION!="add", GOTO="end"\nMODE="0600"\nLABEL="end"\n',
        'KERNEL=="a", \\\n# between\n  MODE="0600"\n',
        "RUN+=\"/bin/sh -c 'echo $$HOME 100%%'\"\n",
    ],
)
def test_lint_is_silent_about_right_files(text: str) -> None:
    assert lint(parse(text), {"root"}, {"root"}) == []


def test_a_comment_between_continued_lines_is_no_part_of_the_rule() -> None:
    (rule,) = parse('KERNEL=="a", \\\n # MODE="0600", \\\n  RUN+="x"\n').rules
    assert [t.key for t in rule.tokens] == ["KERNEL", "RUN"]
    assert (rule.line, rule.last_line, rule.line_of(rule.tokens[1])) == (1, 3, 3)


def test_a_blank_line_ends_a_continued_rule() -> None:
    assert [len(r.tokens) for r in parse('MODE="0600", \\\n\nMODE="0666"\n').rules] == [1, 1]


def test_carriage_returns_end_lines_as_newlines_do() -> None:
    rules = parse('KERNEL=="a", MODE="0600"\r\nKERNEL=="b", MODE="0666"\r\n').rules
    assert [r.error for r in rules] == ["", ""]
    assert rules[1].line == 2


def test_a_file_that_ends_inside_a_rule_loses_it() -> None:
    (rule,) = parse('MODE="0600", \\\n').rules
    assert "ends inside" in rule.error


def test_a_rule_longer_than_udev_reads_is_void() -> None:
    half = 'RUN+="' + "x" * (LINE_LIMIT // 2) + '", \\\n'
    (rule,) = parse(half * 2 + 'MODE="0600"\n').rules
    assert "longer than" in rule.error


def test_a_physical_line_longer_than_udev_reads_ends_the_file() -> None:
    file = parse('MODE="0600"\n' + " " * LINE_LIMIT + "\n")
    assert (file.error_line, "stops reading" in file.error) == (2, True)
    assert not parse(" " * (LINE_LIMIT - 1) + "\n").error


def test_the_tokens_of_a_line_are_applied_comparisons_first() -> None:
    (rule,) = parse('RUN+="x", RESULT=="1", PROGRAM="/bin/y", MODE="0600", KERNEL=="z"\n').rules
    assert [t.key for t in rule.ordered] == ["KERNEL", "PROGRAM", "RESULT", "MODE", "RUN"]


def test_commas_are_put_where_they_belong() -> None:
    text = 'KERNEL=="accel*" MODE="0666"\nA\nKERNEL=="b"MODE="0666", \\\n  RUN+="x"\\\n TAG+="y"\n'
    assert with_missing_commas(parse(text)) == (
        'KERNEL=="accel*", MODE="0666"\nA\nKERNEL=="b", MODE="0666", \\\n  RUN+="x", \\\n TAG+="y"\n'
    )


@pytest.mark.parametrize(
    "hostile",
    ['"\\' * 20000, "KERNEL{" * 5000, '\\\n"' * 30000, "+" * 50000, 'GOTO="a"\n' * 20000, "\r\0" * 50000],
)
def test_hostile_text_takes_no_long_time(hostile: str) -> None:
    start = time.process_time()
    lint(parse(hostile), (), ())
    assert time.process_time() - start < 5
