"""grub.cfg: menu entries, the kernel lines in them, and which entry boots.

Sources: the GRUB manual ("menuentry", "submenu", "linux", "default"); grub-core/normal/menu.c for how
``default`` is looked up. A line that loads memtest or another program of its own is no kernel line. Kernels
that Xen loads as modules are not looked at: a TPU machine is no Xen host.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tpu_image.formats import FormatError
from tpu_image.formats.edits import Edit, apply_edits
from tpu_image.formats.grub_script import GrubWord, kernel_text, scan

SIZE_LIMIT = 1024 * 1024
"""Characters of a grub.cfg at most; a hundred kernels make 200 KiB."""

LINES_LIMIT = 1000
"""Lines that load a kernel at most."""

DEPTH_LIMIT = 32
"""Blocks inside each other at most."""

_LINUX = frozenset(("linux", "linux16", "linuxefi", "linux32"))
_MENU = frozenset(("menuentry", "submenu", "hiddenentry"))
_LEADING = frozenset(("if", "elif", "then", "else", "while", "until", "do", "!"))
_OPTIONS_WITH_VALUE = frozenset(("--class", "--users", "--hotkey", "--id", "--source"))
_OTHER_PROGRAMS = ("memtest*", "mt86*", "memdisk*", "*.lkrn", "*.c32", "ipxe*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")


class MenuEntry(NamedTuple):
    """A ``menuentry`` or ``submenu``; ``parent`` is the submenu that it is in."""

    title: str
    id: str
    line: int
    is_submenu: bool
    parent: MenuEntry | None = None

    @property
    def path(self) -> str:
        """Its title behind those of the submenus around it, as ``default`` names it."""
        own = self.title.replace(">", ">>")
        return f"{self.parent.path}>{own}" if self.parent else own


class Command(NamedTuple):
    """One command: its words, the first of which is its name, and the entry that it is in."""

    words: tuple[GrubWord, ...]
    entry: MenuEntry | None
    function: str = ""
    """Name of the function that it is in."""

    @property
    def name(self) -> str:
        """The word that names it."""
        return self.words[0].text


class LinuxLine(NamedTuple):
    """A command that loads a kernel."""

    command: Command

    @property
    def entry(self) -> MenuEntry | None:
        """The menu entry that it is in."""
        return self.command.entry

    @property
    def line(self) -> int:
        """Its line, counted from 1."""
        return self.command.words[0].line

    @property
    def kernel(self) -> str:
        """Path of the kernel on the file system that GRUB reads."""
        return self.command.words[1].text

    @property
    def arguments(self) -> tuple[GrubWord, ...]:
        """The words behind the kernel's path."""
        return self.command.words[2:]

    @property
    def start(self) -> int:
        """Position behind the kernel's path, where the arguments' part of the text begins."""
        return self.command.words[1].end

    @property
    def end(self) -> int:
        """Position behind the last word."""
        return self.command.words[-1].end

    def kernel_text(self, variables: Mapping[str, str]) -> str:
        """Give the command line that the kernel gets, where variables have these values."""
        return kernel_text([argument for word in self.arguments for argument in word.expand(variables)])


class Setting(NamedTuple):
    """``set name=value`` or ``name=value``: ``value`` is the word behind the equals sign."""

    name: str
    value: GrubWord


class GrubConfig(NamedTuple):
    """A whole grub.cfg; ``text`` is exactly what was parsed."""

    text: str
    entries: tuple[MenuEntry, ...]
    commands: tuple[Command, ...]
    linux_lines: tuple[LinuxLine, ...]
    """The lines that load a Linux kernel."""
    settings: tuple[Setting, ...]
    """Every assignment of a variable, in order."""

    @classmethod
    def parse(cls, text: str) -> GrubConfig:
        """Read a configuration.

        Raises:
            FormatError: a quote or block is not closed, or a limit of this module is exceeded.
        """
        if len(text) > SIZE_LIMIT:
            raise FormatError(f"longer than {SIZE_LIMIT} characters")
        return _parse(text)

    def edited(self, edits: Iterable[Edit]) -> GrubConfig:
        """Give the configuration after edits to its text."""
        return GrubConfig.parse(apply_edits(self.text, edits))

    def default_entry(self, environment: Mapping[str, str]) -> MenuEntry | None:
        """Give the entry that boots when nobody chooses; None where there is none.

        ``environment`` holds the variables of the environment block (``saved_entry``, ``next_entry``). A
        default that names no entry means the first one, as in GRUB.
        """
        return self._find(self.default_text(environment))

    def default_text(self, environment: Mapping[str, str]) -> str:
        """Give what ``default`` will hold: a number, title, id or path of them; empty where it is not set."""
        if environment.get("next_entry"):
            return environment["next_entry"]
        chosen = ""
        for setting in self.settings:
            if setting.name == "default" and setting.value.variables() != {"next_entry"}:
                chosen = "".join(setting.value.expand(environment))
        return chosen

    def _find(self, wanted: str) -> MenuEntry | None:
        menu: MenuEntry | None = None
        steps = _steps(wanted)
        while True:
            children = [entry for entry in self.entries if entry.parent is menu]
            if not children:
                return menu if menu is None or not menu.is_submenu else None
            step = steps.pop(0) if steps else "0"
            menu = _choose(children, step)
            if not menu.is_submenu:
                return menu


def _steps(wanted: str) -> list[str]:
    """Cut ``a>b`` into its steps; ``>>`` is a ``>`` of a title."""
    return [step.replace("\0", ">") for step in wanted.replace(">>", "\0").split(">")]


def _choose(children: Sequence[MenuEntry], step: str) -> MenuEntry:
    if step.isdecimal() and step.isascii() and len(step) < 10:
        return children[int(step)] if int(step) < len(children) else children[0]
    return next((entry for entry in children if step and step in (entry.title, entry.id)), children[0])


def _loads_linux(command: Command) -> bool:
    if command.name not in _LINUX or len(command.words) < 2:
        return False
    program = command.words[1].text.rpartition("/")[2].lower()
    return not any(fnmatch.fnmatchcase(program, pattern) for pattern in _OTHER_PROGRAMS)


def _settings(command: Command) -> list[Setting]:
    words = command.words[1:] if command.name == "set" else command.words[:1]
    result = []
    for word in words:
        if match := _ASSIGNMENT.match(word.raw):
            start = word.start + match.end()
            result.append(
                Setting(match.group(1), GrubWord(word.raw[match.end() :], start, word.end, word.line))
            )
    return result


def _parse(text: str) -> GrubConfig:
    entries: list[MenuEntry] = []
    commands: list[Command] = []
    blocks: list[tuple[MenuEntry | None, str]] = []
    words: list[GrubWord] = []
    line = 1

    def finish() -> None:
        """Record the command that the words so far make."""
        while words and words[0].raw in _LEADING:
            del words[0]
        if words:
            entry, function = blocks[-1] if blocks else (None, "")
            commands.append(Command(tuple(words), entry, function))
            words.clear()

    for item in scan(text):
        if isinstance(item, GrubWord):
            line = item.line
            words.append(item)
        elif item == "{":
            if len(blocks) == DEPTH_LIMIT:
                raise FormatError("too many blocks inside each other", line)
            blocks.append(_open_block(words, blocks, entries))
            words.clear()
        elif item == "}":
            finish()
            if not blocks:
                raise FormatError("a } that closes nothing", line)
            blocks.pop()
        else:
            finish()
    finish()
    if blocks:
        raise FormatError("a { is not closed", line)
    linux_lines = tuple(LinuxLine(command) for command in commands if _loads_linux(command))
    if len(linux_lines) > LINES_LIMIT:
        raise FormatError(f"more than {LINES_LIMIT} lines that load a kernel")
    settings = tuple(setting for command in commands for setting in _settings(command))
    return GrubConfig(text, tuple(entries), tuple(commands), linux_lines, settings)


def _open_block(
    words: Sequence[GrubWord], blocks: Sequence[tuple[MenuEntry | None, str]], entries: list[MenuEntry]
) -> tuple[MenuEntry | None, str]:
    parent, function = blocks[-1] if blocks else (None, "")
    names = [word.raw for word in words]
    while names and names[0] in _LEADING:
        names, words = names[1:], words[1:]
    if names and names[0] in _MENU:
        entry = _entry(words, parent)
        entries.append(entry)
        return entry, function
    if names[:1] == ["function"] and len(names) > 1:
        return parent, names[1]
    return parent, function


def _entry(words: Sequence[GrubWord], parent: MenuEntry | None) -> MenuEntry:
    title, name = "", ""
    rest = list(words[1:])
    titled = False
    while rest:
        word = rest.pop(0)
        text = word.text
        if text in ("--id", "${menuentry_id_option}") and rest:
            name = rest.pop(0).text
        elif text.startswith("--id="):
            name = text[len("--id=") :]
        elif text in _OPTIONS_WITH_VALUE and rest:
            rest.pop(0)
        elif not titled and not text.startswith("--"):
            title, titled = text, True
    return MenuEntry(title, name, words[0].line, words[0].raw == "submenu", parent)
