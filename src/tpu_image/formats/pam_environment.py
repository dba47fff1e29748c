"""``/etc/environment`` as pam_env(8) reads it, which is not as a shell would.

Rules (Linux-PAM ``modules/pam_env/pam_env.c``, ``_assemble_line`` and ``_parse_env_file``, 1.5): a ``#``
ends the line wherever it stands, quotes do not protect it; ``export`` and one blank before the name are
skipped; a name is ASCII letters, digits and ``_``; a quote directly after ``=`` is dropped and so is one at
the very end; blanks at the end belong to the value; nothing is expanded; a backslash at the end joins the
next line that is neither blank nor a comment; a name without ``=`` is unset; the last line wins. A line
that breaks these rules has no effect.

Runs on Python 3.8 too: the boot runtime uses it.
"""

from __future__ import annotations

from collections import namedtuple  # typing takes a boot task too long to load

from tpu_image.formats import FormatError
from tpu_image.formats.variable_names import NAME_CHARACTERS

_BLANKS = " \t\n"


class Assignment(namedtuple("Assignment", "name value line")):
    """What one line does: ``value`` None says that it unsets the name. ``line`` counts from 1."""

    __slots__ = ()
    name: str
    value: str | None
    line: int


class _Statement(namedtuple("_Statement", "start end text")):
    """Lines ``[start, end)``, from 0, that are read as one; ``text`` is None where the end is missing."""

    __slots__ = ()
    start: int
    end: int
    text: str | None


def parse(text: str) -> list[Assignment]:
    """Read every assignment in order, overridden ones included.

    Raises:
        FormatError: the text holds a NUL byte, at which pam_env stops reading.
    """
    found = (_interpret(statement) for statement in _statements(_lines(text)))
    return [assignment for assignment in found if assignment is not None]


def effective(text: str, name: str) -> Assignment | None:
    """Give the assignment of a name that wins; None where the name ends unset.

    Raises:
        FormatError: see :func:`parse`.
    """
    mine = [assignment for assignment in parse(text) if assignment.name == name]
    return mine[-1] if mine and mine[-1].value is not None else None


def set_value(text: str, name: str, value: str) -> str:
    """Give the text changed so that pam_env reads this value for the name.

    The line in effect is replaced where it stands and other lines of the name go, their comments kept; where
    there is none, a line is appended. Text that says so already comes back as it is.

    Raises:
        FormatError: pam_env could not read the value back (``#``, a newline), or see :func:`parse`.
    """
    current = effective(text, name)
    if current is not None and current.value == value:
        return text
    lines = _lines(text)
    statements = _statements(lines)
    mine = [statement for statement in statements if _assigns(statement, name)]
    if not mine:
        lines.insert(_end(lines, statements), _spell(name, value))
    for statement in reversed(mine):
        kept = _comments(lines[statement.start : statement.end])
        if statement is mine[-1]:
            kept.append(_spell(name, value))
        lines[statement.start : statement.end] = kept
    return "\n".join(lines)


def _lines(text: str) -> list[str]:
    """Split at newlines alone: the last element is what follows the last newline, mostly nothing."""
    if "\0" in text:
        raise FormatError("holds a NUL byte", text.count("\n", 0, text.index("\0")) + 1)
    return text.split("\n")


def _statements(lines: list[str]) -> list[_Statement]:
    statements: list[_Statement] = []
    parts: list[str] = []
    start = 0
    for index, line in enumerate(lines):
        content, hash_sign, _ = line.partition("#")
        if not content.strip(_BLANKS):
            continue
        if not parts:
            start = index
        trimmed = content.rstrip(_BLANKS)
        if trimmed.endswith("\\") and not hash_sign:
            parts.append(trimmed[:-1])
            continue
        statements.append(_Statement(start, index + 1, "".join([*parts, content])))
        parts = []
    if parts:
        statements.append(_Statement(start, len(lines), None))
    return statements


def _interpret(statement: _Statement) -> Assignment | None:
    if statement.text is None:
        return None
    content = statement.text.lstrip(_BLANKS)
    if content.startswith("export "):
        content = content[len("export ") :]
    name, equals, value = content.partition("=")
    if not name or not NAME_CHARACTERS.issuperset(name):
        return None
    if not equals:
        return Assignment(name, None, statement.start + 1)
    return Assignment(name, _unquote(value), statement.start + 1)


def _unquote(value: str) -> str:
    if not value.startswith(('"', "'")):
        return value
    inner = value[1:]
    return inner[:-1] if inner.endswith(('"', "'")) else inner


def _assigns(statement: _Statement, name: str) -> bool:
    assignment = _interpret(statement)
    return assignment is not None and assignment.name == name


def _comments(lines: list[str]) -> list[str]:
    return [line[line.index("#") :] for line in lines if "#" in line]


def _end(lines: list[str], statements: list[_Statement]) -> int:
    """Where an appended line is read: before the last newline, and before a statement without its end."""
    if statements and statements[-1].text is None:
        return statements[-1].start
    if lines[-1] == "":
        return len(lines) - 1
    lines.append("")
    return len(lines) - 1


def _spell(name: str, value: str) -> str:
    for line in (f"{name}={value}", f'{name}="{value}"'):
        if "\n" not in line and parse(line) == [Assignment(name, value, 1)]:
            return line
    raise FormatError(f"pam_env cannot read back the value {value!r} of {name}")
