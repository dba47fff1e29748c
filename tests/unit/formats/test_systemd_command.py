"""Command lines of services: split as systemd splits them."""

from __future__ import annotations

import pytest

from tpu_image.formats import FormatError
from tpu_image.formats.systemd_command import Command, parse_commands, split_words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("a  b\tc", ["a", "b", "c"]),
        ('"a b" \'c d\' e" "f', ["a b", "c d", "e f"]),
        (r"a\x20b \101 \s\t\\ \u00e9", ["a b", "A", " \t\\", "é"]),
        (r"\xc3\xa9", ["é"]),
        (r"\d \400 \x0", [r"\d", r"\400", r"\x0"]),
        ("'' \"\"", ["", ""]),
        ("%h/x $HOME ${HOME}", ["%h/x", "$HOME", "${HOME}"]),
        ("trailing\\", ["trailing\\"]),
        ("", []),
    ],
)
def test_words_are_split_and_unquoted(value: str, words: list[str]) -> None:
    assert split_words(value) == words


def test_an_open_quote_is_an_error() -> None:
    with pytest.raises(FormatError):
        split_words("echo 'a")


@pytest.mark.parametrize(
    ("value", "commands"),
    [
        ("/bin/echo a", [Command("", "/bin/echo", ("a",))]),
        ("-+/bin/echo a", [Command("-+", "/bin/echo", ("a",))]),
        ("@/usr/bin/python3 agent --x", [Command("@", "/usr/bin/python3", ("--x",))]),
        ("!!/bin/true", [Command("!!", "/bin/true", ())]),
        ("/bin/a 1 ; /bin/b ;", [Command("", "/bin/a", ("1",)), Command("", "/bin/b", ())]),
        (r"/bin/a \; ';' x;", [Command("", "/bin/a", (";", ";", "x;"))]),
        ("", []),
    ],
)
def test_a_command_line_runs_these_commands(value: str, commands: list[Command]) -> None:
    assert parse_commands(value) == commands
