"""Putting a kernel parameter on every boot entry and into what makes the next ones.

Two places have to agree: the entries, so that the first boot has the parameter, and the defaults, so that the
next update-grub keeps it. Entries are written as update-grub would write them from the changed defaults; any
that do not follow from the defaults are mended one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tpu_image.catalogue.boot_loader import KERNEL_INSTALL, BootLoader, read_boot_loader
from tpu_image.catalogue.grub_defaults_edit import put_into_defaults
from tpu_image.catalogue.kernel_parameters import KernelParameter, Reading, repaired
from tpu_image.formats import FormatError
from tpu_image.formats.boot_loader_spec import BootLoaderEntry
from tpu_image.formats.edits import Edit, apply_edits
from tpu_image.formats.grub_config import GrubConfig, LinuxLine
from tpu_image.formats.grub_defaults import LINUX, LINUX_DEFAULT, GrubDefaults, words_on_line
from tpu_image.formats.grub_script import GrubWord, kernel_text, words_of
from tpu_image.formats.kernel_cmdline import KernelCommandLine, Token
from tpu_image.trees.overlay import Overlay

Parser = Callable[[str], KernelCommandLine]
Reader = Callable[[str], list[Reading]]
"""Says what the parameter comes to where a text stands in its place."""


class Template(NamedTuple):
    """The words that update-grub puts behind ``ro`` of ordinary entries and of recovery ones; None: not known.

    A recovery entry's own first word is left out.
    """

    ordinary: list[str] | None
    recovery: list[str] | None

    @classmethod
    def of(cls, defaults: GrubDefaults) -> Template:
        """Read it off the defaults."""
        linux, default = defaults.known(LINUX), defaults.known(LINUX_DEFAULT)
        both = None if linux is None or default is None else f"{linux} {default}"
        return cls(_words(both), _words(linux))

    def words(self, *, recovery: bool) -> list[str] | None:
        """The words of one kind of entry."""
        return self.recovery if recovery else self.ordinary


def _words(text: str | None) -> list[str] | None:
    return None if text is None else [word.raw for word in words_on_line(text)]


def put_parameter(overlay: Overlay, parameter: KernelParameter) -> None:
    """Write what brings a parameter into effect on every entry and in the defaults."""
    loader = read_boot_loader(overlay)
    if loader.has_defaults:
        put_into_defaults(overlay, loader, parameter)
    old, new = Template.of(loader.defaults), Template.of(read_boot_loader(overlay).defaults)
    change = _Change(parameter, old, new)
    for path, config in loader.configs.items():
        edits = [change.of_line(loader, config, line) for line in config.linux_lines]
        _write(overlay, path, config.text, apply_edits(config.text, edits))
    _put_into_environment(overlay, loader, change)
    # Entries may have the parameter from the environment block by now.
    loader = read_boot_loader(overlay)
    for path, entry in loader.entry_files.items():
        if entry.get("linux"):
            _write(overlay, path, entry.text, change.of_entry(loader, entry).text)
    if loader.kernel_install is not None:
        text = loader.kernel_install.text
        _write(overlay, KERNEL_INSTALL, text, change.of_plain(text))


def _write(overlay: Overlay, path: str, before: str, after: str) -> None:
    if after != before:
        overlay.write(path, after)


def _put_into_environment(overlay: Overlay, loader: BootLoader, change: _Change) -> None:
    block = loader.environment
    value = block.get("kernelopts") if block else None
    if block is None or value is None:
        return
    try:
        written = block.with_value("kernelopts", change.of_plain(value))
    except FormatError:
        # The block is full: the entries get the parameter themselves.
        return
    _write(overlay, loader.environment_path, block.text, written.text)


class _Change(NamedTuple):
    """A parameter to put in, and what update-grub put behind ``ro`` before and will put there now."""

    parameter: KernelParameter
    old: Template
    new: Template

    def of_line(self, loader: BootLoader, config: GrubConfig, linux: LinuxLine) -> Edit:
        """Give the edit of one ``linux`` line of grub.cfg."""
        ways = loader.possible_variables(config, linux)

        def read(text: str) -> list[Reading]:
            words = words_of(text)
            return [self.parameter.read(_kernel_line(words, variables)) for variables in ways]

        text = config.text[linux.start : linux.end]
        return Edit(
            linux.start, linux.end, self._mended(text, _grub_line, read, recovery=_is_recovery(linux))
        )

    def of_entry(self, loader: BootLoader, entry: BootLoaderEntry) -> BootLoaderEntry:
        """Give an entry of the Boot Loader Specification with the parameter in its options."""
        ways = loader.possible_values(entry.variables(), *loader.configs.values())

        def read_entry(text: str) -> list[Reading]:
            changed = entry.with_options(text)
            return [self.parameter.read(KernelCommandLine.parse(changed.options(v))) for v in ways]

        options = entry.all("options")
        for index in range(len(options) - 1):
            field = entry.all("options")[index]
            text = repaired(field.value, KernelCommandLine.parse, self.parameter)
            entry = entry.edited([Edit(field.start, field.end, text)])
        last = options[-1].value if options else ""
        text = self._mended(last, KernelCommandLine.parse, read_entry, recovery=False)
        return entry.with_options(text) if text != last else entry

    def of_plain(self, text: str) -> str:
        """Give a command line, as it stands in a file of its own, with the parameter."""
        return self._mended(text, KernelCommandLine.parse, self._read_plain, recovery=False)

    def _read_plain(self, text: str) -> list[Reading]:
        return [self.parameter.read(KernelCommandLine.parse(text))]

    def _mended(self, whole: str, parse: Parser, read: Reader, *, recovery: bool) -> str:
        """Put the parameter behind ``root=`` and ``ro``: nothing of it may run together with those.

        The text comes back as it is where nothing brings the parameter into effect.
        """
        tokens = parse(whole).tokens
        leading = _count_leading([token.text for token in tokens])
        start = tokens[leading - 1].end if leading else 0
        head, text = whole[:start], whole[start:]
        text = self._followed(text, parse, recovery=recovery)
        if all(reading.is_clean for reading in read(head + text)):
            return head + text
        text = repaired(text, parse, self.parameter)
        if not _in_effect(read(head + text)):
            placed = self._placed(text, parse, recovery=recovery)
            if _in_effect(read(head + placed)):
                return head + placed
            text = _appended(text, parse, self.parameter.token)
            # The text of a linux line begins behind the kernel's path, that of an options line with nothing.
            text = text if head or parse is _grub_line else text.removeprefix(" ")
        return head + text if _in_effect(read(head + text)) else whole

    def _followed(self, text: str, parse: Parser, *, recovery: bool) -> str:
        """Do what update-grub will do to a line that it made from the defaults as they were."""
        old, new = self.old.words(recovery=recovery), self.new.words(recovery=recovery)
        if old is None or new is None or old == new:
            return text
        line = parse(text)
        written = [token.text for token in line.tokens]
        first = len(written) - len(old) if recovery else _count_prefix(written)
        if first < 0 or written[first : first + len(old)] != old:
            return text
        return _with_words(line, first, old, new)

    def _placed(self, text: str, parse: Parser, *, recovery: bool) -> str:
        """Put the token where update-grub will put it, on a line that lacks some of the defaults' words.

        The text comes back as it is where it shares none of those words.
        """
        line = parse(text)
        rest = [token.text for token in line.tokens]
        result = []
        # A recovery entry has its own words in front, an ordinary one may have some behind.
        step = -1 if recovery else 0
        words = list(self.new.words(recovery=recovery) or ())
        kept = [] if recovery else [rest.pop(0) for _ in range(_count_prefix(rest))]
        before = len(rest)
        for word in reversed(words) if recovery else words:
            if rest and rest[step] == word:
                result.append(rest.pop(step))
            elif Token(word, 0, 0).name == self.parameter.name:
                result.append(word)
        if len(rest) == before:
            return text
        new = [*rest, *reversed(result)] if recovery else [*kept, *result, *rest]
        return _with_words(line, 0, [token.text for token in line.tokens], new)


def _in_effect(readings: list[Reading]) -> bool:
    return all(reading.in_effect for reading in readings)


def _kernel_line(words: list[GrubWord], variables: Mapping[str, str]) -> KernelCommandLine:
    return KernelCommandLine.parse(kernel_text([a for word in words for a in word.expand(variables)]))


def _grub_line(text: str) -> KernelCommandLine:
    """Cut the arguments of ``linux`` as GRUB does."""
    return KernelCommandLine(text, tuple(Token(w.raw, w.start, w.end) for w in words_of(text)))


def _is_recovery(linux: LinuxLine) -> bool:
    entry = linux.entry
    named = entry is not None and ("-recovery" in entry.id or "recovery mode" in entry.title)
    words = [word.raw for word in linux.arguments]
    return named or words[_count_leading(words) :][:1] in (["single"], ["recovery"])


def _count_leading(words: Sequence[str]) -> int:
    """Words that 10_linux writes in front of all others: one ``root=`` and one ``ro``."""
    count = 1 if words and words[0].startswith("root=") else 0
    return count + (1 if words[count : count + 1] in (["ro"], ["rw"]) else 0)


def _count_prefix(words: list[str]) -> int:
    """Words that 10_linux puts in front of the defaults' own on btrfs."""
    return 1 if words and words[0].startswith("rootflags=subvol=") else 0


def _with_words(line: KernelCommandLine, first: int, old: list[str], new: list[str]) -> str:
    """Put words in place of those from index ``first`` on; what both sides share stays as written."""
    same = 0
    while same < min(len(old), len(new)) and old[same] == new[same]:
        same += 1
    behind = 0
    while behind < min(len(old), len(new)) - same and old[-1 - behind] == new[-1 - behind]:
        behind += 1
    begin, end = first + same, first + len(old) - behind
    words = new[same : len(new) - behind]
    if begin == end and begin == 0 and line.tokens:
        start = line.tokens[0].start
        return apply_edits(line.text, [Edit(start, start, "".join(f"{word} " for word in words))])
    start = line.tokens[begin - 1].end if begin else 0
    stop = line.tokens[end - 1].end if end else start
    return apply_edits(line.text, [Edit(start, stop, "".join(f" {word}" for word in words))])


def _appended(text: str, parse: Parser, word: str) -> str:
    line = parse(text)
    if line.tokens:
        return apply_edits(text, [line.append_edit(word)])
    return f" {word}{text}"
