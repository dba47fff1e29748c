"""systemd unit files and the ``.conf`` files of its daemons: read, merged with drop-ins, edited in place.

Syntax: systemd.syntax(7), as ``config_parse()`` of systemd's ``src/shared/conf-parser.c`` reads it. Names,
search path and drop-in directories: systemd.unit(5) and ``src/shared/dropin.c``.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tpu_image.formats import FormatError

UNIT_DIRECTORIES: tuple[str, ...] = (
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    "/etc/systemd/system",
    "/etc/systemd/system.attached",
    "/run/systemd/system",
    "/run/systemd/system.attached",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
    "/run/systemd/generator.late",
)
"""Where the system manager looks for units, the first wins (systemd.unit(5), "System Unit Search Path")."""

CONFIGURATION_DIRECTORIES: tuple[str, ...] = (
    "/etc/systemd",
    "/run/systemd",
    "/usr/local/lib/systemd",
    "/usr/lib/systemd",
    "/lib/systemd",
)
"""Where ``system.conf`` and ``system.conf.d`` are looked for, the first wins (systemd-system.conf(5))."""

UNIT_TYPES = frozenset(
    ("automount", "device", "mount", "path", "scope", "service", "slice", "socket", "swap", "target", "timer")
)
LINE_LIMIT = 1024 * 1024
"""Characters of one line, continuations joined, that systemd accepts (``LONG_LINE_MAX``)."""

_SPACE = " \t\n\r"
_LINE_BREAK = re.compile(r"\n\r?\0?|\r\n?\0?|\0")


class Setting(NamedTuple):
    """One ``key=value``: ``line`` counts from 1, ``start`` and ``end`` are offsets in the text."""

    section: str
    key: str
    value: str
    line: int
    start: int
    end: int


class UnitFile:
    """A parsed file. ``text`` is the file as it is; ``settings`` are its assignments in order.

    ``error`` says where systemd stops reading: a malformed section header, a line longer than it accepts.
    What stands before is in effect all the same, except that a unit's main file must have none.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.settings: list[Setting] = []
        self.sections: dict[str, int] = {}
        """Section names, each with the offset behind its last header."""
        self.ignored: list[int] = []
        """Lines that systemd skips with a warning: no ``=``, no key, or outside of any section."""
        self.error: FormatError | None = None
        try:
            self._parse()
        except FormatError as error:
            self.error = error

    def _parse(self) -> None:
        section = ""
        for number, start, end, content in _logical_lines(self.text):
            if content.startswith("["):
                if not content.endswith("]"):
                    raise FormatError(f"section header without ]: {content[:60]}", number)
                section = content[1:-1]
                if any(character < " " or character in "\"'\\\x7f" for character in section):
                    raise FormatError("section header with a quote, backslash or control character", number)
                self.sections[section] = end
                continue
            key, equals, value = content.partition("=")
            key = key.rstrip(_SPACE)
            if not (section and equals and key):
                self.ignored.append(number)
                continue
            self.settings.append(Setting(section, key, value.lstrip(_SPACE), number, start, end))

    def with_setting(self, section: str, key: str, value: str) -> UnitFile:
        """Give a copy in which ``value`` is the last word for the key; all other lines stay as they are.

        Raises:
            FormatError: the value holds a line break, or the file is one that systemd stops reading.
        """
        if self.error:
            raise self.error
        if any(separator in value for separator in "\n\r\0"):
            raise FormatError(f"{key}: a value cannot hold a line break")
        assignment = f"{key}={value}\n"
        same_section = [setting for setting in self.settings if setting.section == section]
        same_key = [setting for setting in same_section if setting.key == key]
        if same_key:
            last = same_key[-1]
            comments = _comments(self.text[last.start : last.end])
            return UnitFile(self.text[: last.start] + comments + assignment + self.text[last.end :])
        if section in self.sections:
            place = max([self.sections[section], *(setting.end for setting in same_section)])
            head = _closed(self.text[:place])
            return UnitFile(head + assignment + self.text[place:])
        head = _closed(self.text)
        separator = "\n" if head else ""
        return UnitFile(f"{head}{separator}[{section}]\n{assignment}")


class Located(NamedTuple):
    """A value and the file and line that give it."""

    value: str
    path: str
    line: int


class Configuration:
    """Files in the order in which systemd reads them: a fragment or main file, then its drop-ins."""

    def __init__(self, files: Sequence[tuple[str, UnitFile]]) -> None:
        self.files = tuple(files)

    def all(self, section: str, key: str) -> list[Located]:
        """Every assignment of a key, empty ones too."""
        return [
            Located(setting.value, path, setting.line)
            for path, file in self.files
            for setting in file.settings
            if setting.key == key and setting.section == section
        ]

    def values(self, section: str, key: str) -> list[Located]:
        """Values of a key that may be repeated: an empty assignment takes back those before it."""
        values: list[Located] = []
        for located in self.all(section, key):
            values = [*values, located] if located.value else []
        return values

    def last(self, section: str, key: str) -> Located | None:
        """The assignment that decides a key with a single value; None where it stays at its default."""
        values = self.values(section, key)
        return values[-1] if values else None


def unit_type(name: str) -> str:
    """Give ``service`` for ``a.service``; empty where the name is that of no unit."""
    suffix = name.rpartition(".")[2]
    return suffix if suffix in UNIT_TYPES and len(name) > len(suffix) + 1 else ""


def split_name(name: str) -> tuple[str, str | None, str]:
    """Give prefix, instance and type: ``getty``, ``tty1``, ``service``.

    The instance of a template is empty, that of a plain unit is None.
    """
    stem, _, suffix = name.rpartition(".")
    prefix, at, instance = stem.partition("@")
    return prefix, instance if at else None, suffix


def template_of(name: str) -> str:
    """Give the template's name of an instance: ``getty@.service``; empty for any other unit."""
    prefix, instance, suffix = split_name(name)
    return f"{prefix}@.{suffix}" if instance else ""


def related_directories(name: str, suffix: str) -> list[str]:
    """Names of the directories that extend a unit (``.d``, ``.wants``), the most specific first.

    The directory of the unit itself, of its template, and of each prefix that ends in a dash
    (systemd.unit(5)). The one for all units of the type (``service.d``) is not among them, since it ranks
    behind those of aliases.
    """
    found = [name + suffix]
    template = template_of(name)
    if template:
        found += related_directories(template, suffix)
    prefix, instance, kind = split_name(name)
    shorter = _shorter_prefix(prefix)
    while shorter:
        if instance:
            found += [f"{shorter}@{instance}.{kind}{suffix}", f"{shorter}@.{kind}{suffix}"]
        else:
            found.append(f"{shorter}.{kind}{suffix}")
        shorter = _shorter_prefix(shorter)
    return list(dict.fromkeys(found))


def _shorter_prefix(prefix: str) -> str:
    trimmed = prefix.removesuffix("-")
    dash = trimmed.rfind("-")
    return trimmed[: dash + 1] if dash > 0 else ""


def order_by_name(paths: Sequence[str]) -> list[str]:
    """Order files of several directories as systemd reads them: by name, the first of equal names wins."""
    by_name: dict[str, str] = {}
    for path in paths:
        by_name.setdefault(path.rpartition("/")[2], path)
    return [by_name[name] for name in sorted(by_name, key=os.fsencode)]


def _closed(text: str) -> str:
    """End the last line of a text, and a continuation that is still open, so that a line can follow."""
    if text and not text.endswith(("\n", "\r", "\0")):
        text += "\n"
    lines = [line for *_, line in _physical_lines(text)][:-1]
    spoken = [line for line in lines if not _is_comment(line)]
    return text + "\n" if spoken and _is_continued(spoken[-1]) else text


def _comments(text: str) -> str:
    return "".join(line + "\n" for line in text.split("\n") if _is_comment(line))


def _is_comment(line: str) -> bool:
    return line.lstrip(_SPACE).startswith(("#", ";"))


def _is_continued(line: str) -> bool:
    return line.endswith("\\") and (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _logical_lines(text: str) -> Iterator[tuple[int, int, int, str]]:
    """Yield line number, start, end and content of each line that says something, continuations joined."""
    parts: list[str] = []
    first = start = size = 0
    for number, offset, end, line in _physical_lines(text):
        if _is_comment(line):
            continue
        if not parts:
            first, start, size = number, offset, 0
        size += len(line)
        if size > LINE_LIMIT:
            raise FormatError(f"longer than {LINE_LIMIT} characters", first)
        if _is_continued(line):
            parts.append(line[:-1] + " ")
            continue
        content = "".join([*parts, line]).strip(_SPACE)
        parts.clear()
        if content:
            yield first, start, end, content
    content = "".join(parts).strip(_SPACE)
    if content:
        yield first, start, len(text), content


def _physical_lines(text: str) -> Iterator[tuple[int, int, int, str]]:
    """Yield number, start, end (behind the line break) and content; CR, LF and NUL break lines."""
    offset = 0
    breaks = _LINE_BREAK.finditer(text)
    for number in itertools.count(1):
        found = next(breaks, None)
        line = text[offset : found.start() if found else len(text)]
        end = found.end() if found else len(text)
        yield number, offset, end, line.removeprefix("\ufeff") if number == 1 else line
        if found is None:
            return
        offset = end
