from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpu_image.formats.shell_commands import EXPANSION_LIMIT, split_commands

COMMANDS = {
    "a b; c && d || e | f & g": ["a b", "c", "d", "e", "f", "g"],
    "a # b; c\nd a#b": ["a", "d a#b"],
    "if ! a; then b; else c; fi": ["a", "b", "c", "fi"],
    "{ exec a; }": ["a", "}"],
    "A=1 B='x y' a $A": ["a $A"],
    "A=1\na $A ${A}2 '$A' \"$A\" \\$A $B ${A:-x}": ["a 1 12 $A 1 $A $B ${A:-x}"],
    "a \\\n  b": ["a b"],
    "a 'x\ny'\nb": ["a x\ny", "b"],
    "a > out 2>&1": ["a out 2", "1"],
    "(a)": ["a"],
    'a "unclosed\nb': ["a unclosed\nb"],
    "a \\": ["a "],
    "": [],
    "# nothing": [],
}


@pytest.mark.parametrize("text", COMMANDS)
def test_the_words_of_each_command_are_told_apart(text: str) -> None:
    assert [" ".join(command.words) for command in split_commands(text)] == COMMANDS[text]


@pytest.mark.parametrize(
    "text",
    ["docker load < /a.tar", "</a.tar docker load", "zcat /a.tar | docker load", "docker load < '/a.tar'"],
)
def test_what_a_command_reads_is_known(text: str) -> None:
    command = split_commands(text)[-1]
    assert (command.words, command.source) == (("docker", "load"), "/a.tar")


def test_each_command_has_the_line_on_which_it_starts() -> None:
    commands = split_commands("#!/bin/sh\n\na \\\n b\nc 'x\n'\nd\n")
    assert [command.line for command in commands] == [3, 5, 7]


@settings(deadline=None)
@given(st.lists(st.text(alphabet="ab '\"\\$#;&|<>(){}*?~\t", min_size=1), min_size=1, max_size=5))
def test_quoted_words_come_back_as_they_were(words: list[str]) -> None:
    words = ["x", *words]
    (command,) = split_commands(shlex.join(words))
    assert list(command.words) == words


@settings(deadline=None, max_examples=60)
@given(st.text(alphabet="ab '\"\\", max_size=12))
def test_words_are_those_of_a_real_shell(text: str) -> None:
    script = f"set -f\nprintf '%s\\0' x {text}\n"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    if done.returncode == 0:
        command = split_commands(f"x {text}\n")[0]
        assert [*command.words] == done.stdout.split("\0")[:-1]


def test_variables_do_not_expand_beyond_the_limit() -> None:
    text = "A=" + "x" * 1000 + "\n" + "a " + "$A" * 100_000
    commands = split_commands(text)
    assert sum(len(word) for command in commands for word in command.words) < EXPANSION_LIMIT + 300_000
