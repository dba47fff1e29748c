r"""``/home/tpu-runtime/tpu-env``: TPU settings that shells and systemd read with the same values.

A value stands between double quotes, with a backslash before each double quote, backslash, dollar and
backtick. There POSIX shells (POSIX.1-2017, XCU 2.2.3) and systemd (``src/basic/env-file.c``, systemd.exec(5))
agree. Elsewhere they do not: an unquoted backslash, or a quote amid a value, is not the same to both.

What cannot be said to both, or to the kernel, is refused by name:

* control characters other than a tab, at which readers of lines stop; surrogates, noncharacters and U+FEFF,
  which systemd.exec(5) excludes, and for most of which systemd refuses the whole file;
* an assignment of more bytes than execve(2) passes (``MAX_ARG_STRLEN``): no service would start with it;
* reserved names (:mod:`~tpu_image.formats.variable_names`). The file is sourced at logins and loaded into
  services, and metadata is not the place to set ``PATH`` or ``LD_PRELOAD``.

``UID``, ``EUID`` and ``PPID`` are readonly in bash. They are written where no shell goes and systemd does,
and once more as ``TPU_UID`` and so on for shells::

    if false; then
    UID="1234"
    fi
    TPU_UID="1234"

Runs on Python 3.8 too: the boot runtime uses it.
"""

from __future__ import annotations

from collections import namedtuple  # typing takes a boot task too long to load
from collections.abc import Iterable, Mapping

from tpu_image.formats import FormatError
from tpu_image.formats.variable_names import NAME_CHARACTERS, READONLY_IN_SHELLS, is_name, is_reserved

SIZE_LIMIT = 1024 * 1024
"""Bytes of a whole file; the metadata server holds at most 512 KB for one machine."""

ASSIGNMENT_LIMIT = 128 * 1024 - 1
"""Bytes of one ``NAME=value`` that the kernel passes to a program (``MAX_ARG_STRLEN`` less the NUL)."""

ALIAS_PREFIX = "TPU_"
"""What a name that is readonly in shells begins with where shells may read it."""

_SYSTEMD_ONLY_BEGIN = "if false; then"
_SYSTEMD_ONLY_END = "fi"
_ESCAPED = '"\\$`'
_BARE_CHARACTERS = NAME_CHARACTERS | frozenset("./:,@%+=-")


class Assignment(namedtuple("Assignment", "name value line shell", defaults=(True,))):
    """One assignment of a file. ``line`` counts from 1; ``shell`` is False for one that only systemd sees."""

    __slots__ = ()
    name: str
    value: str
    line: int
    shell: bool


def serialise(values: Mapping[str, str], heading: str = "") -> str:
    """Write the file for these values, in their order; ``heading`` becomes comment lines at the top.

    Raises:
        FormatError: names every key that cannot be represented, and why.
    """
    refusals = [refusal for refusal in (_refusal(name, value) for name, value in values.items()) if refusal]
    if refusals:
        raise FormatError("; ".join(refusals))
    readonly = {name: value for name, value in values.items() if name in READONLY_IN_SHELLS}
    aliases = {ALIAS_PREFIX + name: value for name, value in readonly.items()}
    lines = [f"# {line}".rstrip() for line in heading.splitlines()]
    lines += [_assign(name, value) for name, value in values.items() if name not in readonly]
    if readonly:
        lines += ["# Shells keep these names for themselves: for them the values follow as TPU_..."]
        lines += [_SYSTEMD_ONLY_BEGIN]
        lines += [_assign(name, value) for name, value in readonly.items()]
        lines += [_SYSTEMD_ONLY_END]
        lines += [_assign(name, value) for name, value in aliases.items() if name not in values]
    text = "".join(f"{line}\n" for line in lines)
    if len(text.encode()) > SIZE_LIMIT:
        raise FormatError(f"the file would be larger than {SIZE_LIMIT} bytes")
    return text


def parse(text: str) -> list[Assignment]:
    """Read a file, ours or another's, as far as shells and systemd agree on it.

    Raises:
        FormatError: a line has no meaning, or not the same to both.
    """
    assignments: list[Assignment] = []
    shell = True
    for number, line in enumerate(text.split("\n"), 1):
        if line == _SYSTEMD_ONLY_BEGIN and shell:
            shell = False
        elif line == _SYSTEMD_ONLY_END and not shell:
            shell = True
        elif line.lstrip(" \t").startswith("#"):
            if line.endswith("\\"):
                raise FormatError(
                    "a comment that ends in a backslash hides the next line from systemd", number
                )
        elif line.strip(" \t"):
            name, value = _parse_assignment(line, number)
            assignments.append(Assignment(name, value, number, shell))
    if not shell:
        raise FormatError(f"'{_SYSTEMD_ONLY_BEGIN}' is not closed")
    return assignments


def values(assignments: Iterable[Assignment]) -> dict[str, str]:
    """Give what systemd ends up with: the last assignment of a name wins."""
    return {assignment.name: assignment.value for assignment in assignments}


def _refusal(name: str, value: str) -> str:
    shown = name if len(name) <= 80 else name[:77] + "..."
    if not is_name(name):
        return f"{shown!r} is not a name that a shell accepts"
    if is_reserved(name):
        return f"{shown} has a meaning of its own to shells, programs or the login"
    character = _unrepresentable(value)
    if character:
        return f"the value of {shown} holds {_describe(character)}"
    if len(name) + len("=") + len(value.encode()) > ASSIGNMENT_LIMIT:
        return f"the value of {shown} is longer than {ASSIGNMENT_LIMIT} bytes, which no program can be given"
    return ""


def _unrepresentable(value: str) -> str:
    """Give the first character that cannot be written; empty where there is none."""
    if value.isascii() and value.isprintable():
        return ""
    return next((character for character in value if not is_representable(character)), "")


def is_representable(character: str) -> bool:
    """Whether a value may hold the character: shells, systemd and readers of lines all take it."""
    code = ord(character)
    if code < 0x20 or code == 0x7F:
        return code == 0x09
    is_surrogate = 0xD800 <= code <= 0xDFFF
    is_noncharacter = 0xFDD0 <= code <= 0xFDEF or code & 0xFFFE == 0xFFFE
    return not is_surrogate and not is_noncharacter and code != 0xFEFF


def _describe(character: str) -> str:
    names = {"\0": "a NUL", "\n": "a newline", "\r": "a carriage return"}
    return names.get(character, f"the character U+{ord(character):04X}")


def _assign(name: str, value: str) -> str:
    return '{}="{}"'.format(name, "".join("\\" + c if c in _ESCAPED else c for c in value))


def _parse_assignment(line: str, number: int) -> tuple[str, str]:
    content = line.strip(" \t")
    name, equals, written = content.partition("=")
    if not equals or not is_name(name):
        raise FormatError("is not NAME=value", number)
    if written.startswith('"'):
        value, rest = _double_quoted(written, number)
    elif written.startswith("'"):
        value, quote, rest = written[1:].partition("'")
        if not quote:
            raise FormatError("a quote is not closed", number)
    else:
        value, rest = (written, "") if _BARE_CHARACTERS.issuperset(written) else ("", written)
    if rest:
        raise FormatError(f"shells and systemd read the value of {name} differently; quote all of it", number)
    character = _unrepresentable(value)
    if character:
        raise FormatError(f"the value of {name} holds {_describe(character)}", number)
    return name, value


def _double_quoted(written: str, number: int) -> tuple[str, str]:
    """Read from the opening quote; give the value and what follows the closing one."""
    value: list[str] = []
    position = 1
    while position < len(written):
        character = written[position]
        following: str | None = written[position + 1] if position + 1 < len(written) else None
        if character == '"':
            return "".join(value), written[position + 1 :]
        if character == "\\" and following is not None and following in _ESCAPED:
            value.append(following)
            position += 2
            continue
        if character in "$`":
            raise FormatError(f"a shell expands the {character} of this line, systemd does not", number)
        value.append(character)
        position += 1
    raise FormatError("a quote is not closed", number)
