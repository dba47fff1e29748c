"""What a shell file does to variables, read without running any of it.

A file becomes a list of statements: assignments, unsettings, and disturbances, which are places where only a
shell could say what becomes of some variables or of all. Sources: POSIX.1-2017, Shell Command Language 2.9 to
2.14; bash(1) for its own builtins.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tpu_image.formats import FormatError
from tpu_image.formats.shell_tokens import REDIRECTIONS, Token, tokens
from tpu_image.formats.shell_words import NAME, Literal, Word, line_of


class Assignment(NamedTuple):
    """``name=value`` or ``name+=value``; ``uncertain`` says why it may not take effect (empty: it does)."""

    path: str
    line: int
    name: str
    appends: bool
    start: int
    """Position of the name."""
    value: Word
    uncertain: str = ""


class Unset(NamedTuple):
    """``unset name``."""

    path: str
    line: int
    names: frozenset[str]


class Disturbance(NamedTuple):
    """Variables that may have any value from here on; ``names`` is None for all of them."""

    path: str
    line: int
    reason: str
    names: frozenset[str] | None
    lasting: bool = False
    """Whether later assignments do not settle them either (declare, readonly)."""


Statement = Assignment | Unset | Disturbance

_NAME = re.compile(NAME)
_ELEMENT = re.compile(rf"({NAME})\[")
_LOOPS = dict.fromkeys(("while", "until", "for", "select"), "loop")
_KINDS = {"if": "if", "case": "case", "{": "{", **_LOOPS}
_INNER = {"then": "if", "else": "if", "elif": "if", "do": "loop"}
_CLOSERS = {"fi": "if", "done": "loop", "esac": "case", "}": "{", ")": "("}
_CASE_ENDS = (";;", ";&", ";;&")

# Variables that a shell sets itself or keeps from being set.
_READONLY = frozenset(("UID", "EUID", "PPID", "BASHOPTS", "BASH_VERSINFO", "SHELLOPTS"))
_OWN = frozenset(
    [
        "DIRSTACK",
        "FUNCNAME",
        "GROUPS",
        "HISTCMD",
        "LINENO",
        "OPTARG",
        "OPTIND",
        "RANDOM",
        "SECONDS",
        "SRANDOM",
        "_",
    ]
)
_OWN_PREFIXES = ("BASH", "COMP_", "EPOCH")

_DECLARING = frozenset(("declare", "typeset", "readonly", "local"))
_FILLING = frozenset(("read", "getopts", "mapfile", "readarray", "let", "printf", "wait"))
_RUNNING = frozenset((".", "source", "eval", "command", "builtin", "cd", "pushd", "popd", "fc", "coproc"))
_SEALING = frozenset(
    ("exit", "return", "exec", "trap", "shopt", "enable", "alias", "unalias", "set", "break", "continue")
)
_HARMLESS_SET = frozenset(("-a", "+a"))


def parse_statements(path: str, text: str) -> list[Statement]:
    """Read a file; what cannot be followed ends the list with a disturbance of every variable."""
    parser = _Parser(path, text)
    try:
        if "\0" in text:
            raise FormatError("a NUL byte", line_of(text, text.index("\0")))
        parser.tokens = list(tokens(text))
        parser.run()
    except FormatError as error:
        parser.disturb(error.line, error.reason, None)
    return parser.statements


class _Parser:
    """Follows commands one by one; only their order and nesting matter, never what they compute."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.tokens: list[Token] = []
        self.at = 0
        self.statements: list[Statement] = []
        self.open: list[str] = []
        self.listed = ""
        """Why commands of the current list may not run: they stand behind ``&&``, ``||`` or ``|``."""
        self.sealed = ""
        """Why nothing in the rest of the file is certain."""
        self.functions: set[str] = set()
        self.counted_line, self.counted_to = 1, 0

    def line(self, position: int) -> int:
        """The line of a position; positions only grow, so that the whole file is counted once."""
        self.counted_line += self.text.count("\n", self.counted_to, position)
        self.counted_to = max(position, self.counted_to)
        return self.counted_line

    def disturb(self, line: int, reason: str, names: frozenset[str] | None, *, lasting: bool = False) -> None:
        """Record that variables may have any value from here on."""
        if names is None or names:
            self.statements.append(Disturbance(self.path, line, reason, names, lasting))

    def fail(self, reason: str) -> FormatError:
        """The error that ends the reading here."""
        position = self.tokens[min(self.at, len(self.tokens) - 1)].start
        return FormatError(reason, self.line(position))

    def peek(self) -> Token | None:
        """The next token, None at the end."""
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def run(self) -> None:
        """Read command after command to the end of the file."""
        while (token := self.peek()) is not None:
            if not token.is_word and token.text not in REDIRECTIONS:
                self.operator(token)
            elif not (token.is_word and not token.name and self.reserved(token)):
                self.simple_command()
        if self.open:
            raise self.fail(f"a {self.open[-1]} that is not closed")

    def operator(self, token: Token) -> None:
        """Read an operator where a command may begin."""
        self.at += 1
        self.disturb(self.line(token.start), "a here-document", token.assigned)
        if token.text in ("&&", "||", "|", "|&"):
            self.listed = f"behind {token.text}"
            while (following := self.peek()) is not None and following.text == "\n":
                self.operator_newline(following)
            return
        if token.text == "(":
            self.open.append("(")
        elif token.text == ")":
            if self.open[-1:] != ["case"]:
                self.close(token.text)
        elif token.text in _CASE_ENDS and self.open[-1:] != ["case"]:
            raise self.fail(f"a {token.text} outside case")
        self.listed = ""

    def operator_newline(self, token: Token) -> None:
        """Step over a newline that continues a list."""
        self.at += 1
        self.disturb(self.line(token.start), "a here-document", token.assigned)

    def close(self, closer: str) -> None:
        """End the innermost compound command."""
        if not self.open or self.open.pop() != _CLOSERS[closer]:
            raise self.fail(f"a {closer} that closes nothing")

    def reserved(self, token: Token) -> bool:
        """Read a reserved word; False where the word is none."""
        raw = token.raw
        if raw in ("for", "select", "case"):
            self.at += 1
            self.open.append(_KINDS[raw])
            self.head_of_case() if raw == "case" else self.head_of_loop()
        elif raw in _KINDS:
            self.open.append(_KINDS[raw])
            self.at += 1
        elif raw in _INNER:
            if self.open[-1:] != [_INNER[raw]]:
                raise self.fail(f"a {raw} out of place")
            self.at += 1
        elif raw in _CLOSERS:
            self.close(raw)
            self.at += 1
        elif raw in ("!", "time"):
            self.listed = f"behind {raw}"
            self.at += 1
        elif raw == "function":
            self.at += 1
            self.define(self.next_word())
        elif raw == "[[":
            self.test_command()
        else:
            return self.definition(token)
        return True

    def next_word(self) -> Token:
        """Take the next token, which must be a word."""
        token = self.peek()
        if token is None or not token.is_word:
            raise self.fail("a word is missing")
        self.at += 1
        self.disturb(self.line(token.start), "an expansion that assigns", token.assigned)
        return token

    def head_of_loop(self) -> None:
        """Read ``NAME [in WORD...]`` up to what ends it."""
        variable = self.next_word()
        self.disturb(
            self.line(variable.start), "the variable of a loop", frozenset(_NAME.findall(variable.raw))
        )
        while (token := self.peek()) is not None and token.is_word and token.raw != "do":
            self.next_word()

    def head_of_case(self) -> None:
        """Read ``WORD in``."""
        self.next_word()
        while (token := self.peek()) is not None and token.text == "\n":
            self.operator_newline(token)
        if self.next_word().raw != "in":
            raise self.fail("a case without in")

    def test_command(self) -> None:
        """Read ``[[ ... ]]``, in which operators mean something else."""
        while (token := self.peek()) is not None:
            self.at += 1
            self.disturb(self.line(token.start), "an expansion that assigns", token.assigned)
            if token.raw == "]]":
                return
        raise self.fail("a [[ that is not closed")

    def definition(self, token: Token) -> bool:
        """Read ``NAME ()``; the body follows as any other command."""
        following = [t.text for t in self.tokens[self.at + 1 : self.at + 3]]
        if following[:1] != ["("]:
            return False
        if following != ["(", ")"]:
            raise self.fail("a parenthesis out of place")
        self.at += 1
        self.define(token)
        return True

    def define(self, name: Token) -> None:
        """Note the name of a function, and step over the parentheses behind it."""
        self.functions.add(name.raw)
        if [t.text for t in self.tokens[self.at : self.at + 2]] == ["(", ")"]:
            self.at += 2

    def simple_command(self) -> None:
        """Read assignments, words and redirections up to an operator."""
        assigned: list[Token] = []
        words: list[Token] = []
        redirected = ""
        while (token := self.peek()) is not None:
            if token.text in REDIRECTIONS:
                self.at += 1
                self.next_word()
                redirected = "with a redirection"
            elif not token.is_word:
                break
            else:
                self.at += 1
                (assigned if token.name and not words else words).append(token)
        behind = token.text if token is not None else ""
        if behind == "(":
            raise self.fail("a parenthesis out of place")
        in_background = f"before {behind}" if behind in ("|", "|&", "&") else ""
        nested = f"inside {self.open[-1]}" if self.open else ""
        uncertain = self.sealed or nested or self.listed or in_background or redirected
        if not words:
            for item in assigned:
                self.assign(item, uncertain)
            return
        for item in assigned:
            self.disturb(self.line(item.start), "set for one command", frozenset((item.name,)))
        self.command(words, uncertain)

    def assign(self, token: Token, uncertain: str) -> None:
        """Record an assignment."""
        line = self.line(token.start)
        self.disturb(line, "an expansion that assigns", token.assigned)
        if token.name in _READONLY:
            raise FormatError(f"{token.name} is read-only in bash", line)
        if token.array:
            uncertain = uncertain or "a list"
        elif token.name in _OWN or token.name.startswith(_OWN_PREFIXES):
            self.disturb(line, "a variable of the shell itself", frozenset((token.name,)), lasting=True)
        self.statements.append(
            Assignment(self.path, line, token.name, token.appends, token.start, token.word, uncertain)
        )

    def command(self, words: list[Token], uncertain: str) -> None:
        """Record what a command with a name may do to variables."""
        line = self.line(words[0].start)
        for word in words:
            self.disturb(line, "an expansion that assigns", word.assigned)
        name = None if words[0].name else words[0].word.literal
        element = _ELEMENT.match(words[0].raw)
        arguments = words[1:]
        if element:
            self.disturb(line, "an element of a list", frozenset((element.group(1),)))
        elif name == "export":
            self.export(arguments, uncertain, line)
        elif name == "unset":
            self.unset(arguments, uncertain, line)
        elif name in _DECLARING or name in _FILLING:
            self.fill(name or "", arguments, line)
        elif name in _SEALING and not (name == "set" and {w.raw for w in arguments} <= _HARMLESS_SET):
            self.disturb(line, f"{name} changes what follows", None)
            self.sealed = f"behind {name}"
        elif name is None or name in _RUNNING or name in self.functions:
            self.disturb(line, f"{words[0].raw.split(chr(10))[0][:40]} may run anything", None)

    def export(self, arguments: list[Token], uncertain: str, line: int) -> None:
        """Record ``export NAME=VALUE...``."""
        for token in arguments:
            if token.name:
                # Older shells split and glob these arguments, newer ones do not.
                plain = token.is_word and all(
                    part.quote or (isinstance(part, Literal) and not set(part.value) & set("*?[{}"))
                    for part in token.word.parts
                )
                self.assign(token, uncertain or ("" if plain else "an unquoted expansion after export"))
            elif not _NAME.fullmatch(token.raw) and token.raw not in ("-p", "-n", "--"):
                self.disturb(line, "export of something computed", None)

    def unset(self, arguments: list[Token], uncertain: str, line: int) -> None:
        """Record ``unset NAME...``."""
        names = frozenset(token.raw for token in arguments)
        if uncertain or not all(_NAME.fullmatch(name) for name in names):
            plain = frozenset(_NAME.findall(" ".join(names)))
            self.disturb(line, "unset", None if any("$" in name or "`" in name for name in names) else plain)
        else:
            self.statements.append(Unset(self.path, line, names))

    def fill(self, name: str, arguments: list[Token], line: int) -> None:
        """Record a builtin that sets the variables it is given the names of."""
        if name == "printf" and not (arguments and arguments[0].raw.startswith("-v")):
            return
        text = " ".join(f"{token.name} {token.raw}" for token in arguments)
        computed = "$" in text or "`" in text or (name in _FILLING and not arguments)
        names = frozenset((*_NAME.findall(text), "REPLY", "MAPFILE"))
        self.disturb(line, f"set by {name}", None if computed else names, lasting=name in _DECLARING)
