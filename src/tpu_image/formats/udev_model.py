"""The words in which a udev event is judged: the device, the machine it is on, and what the rules make of it.

Sources: udev(7); systemd's ``udev-event.c`` for how a command of ``RUN`` is split.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

Truth = bool | None
"""None: undecided."""


_NOTHING: Mapping[str, str] = MappingProxyType({})


class Device(NamedTuple):
    """A device as sysfs shows it. ``devpath`` is its path without ``/sys``.

    Attributes:
        node: path of its device node; empty where it has none.
        complete: whether an attribute that is not listed does not exist; otherwise it is unknown.
        properties: what the kernel sends with the event, beside what follows from the other fields.
    """

    kernel: str
    subsystem: str = ""
    devpath: str = ""
    driver: str = ""
    attributes: Mapping[str, str] = _NOTHING
    properties: Mapping[str, str] = _NOTHING
    tags: tuple[str, ...] = ()
    node: str = ""
    parent: Device | None = None
    complete: bool = True

    def lineage(self) -> Iterator[Device]:
        """Give the device and then its parents, nearest first."""
        device: Device | None = self
        while device is not None:
            yield device
            device = device.parent


def _unknown_path(path: str) -> Truth:
    del path
    return None


class Machine(NamedTuple):
    """What the rules can ask about beside the device.

    Attributes:
        architecture: as ``CONST{arch}`` says it (``x86-64``); empty where it is not known.
        exists: whether an absolute path exists; None where that is not known.
        users: names that exist; none at all where they are not known, and the same for ``groups``.
        systemd: version of systemd; 0 where it is not known.
    """

    architecture: str = ""
    exists: Callable[[str], Truth] = _unknown_path
    users: Collection[str] = ()
    groups: Collection[str] = ()
    systemd: int = 0


class Assignment(NamedTuple):
    """A value that a line gives, and where that line stands. ``doubt`` says what it depends on, if at all."""

    value: str
    path: str
    line: int
    doubt: str = ""


class Command(NamedTuple):
    """A program of ``RUN``: ``value`` is its command line after substitution; the rest as in an assignment."""

    value: str
    path: str
    line: int
    doubt: str = ""
    builtin: bool = False


class Slot:
    """A value that later lines replace: the one that holds for certain, and those that may hold instead."""

    def __init__(self, sure: Assignment | None = None) -> None:
        self.sure = sure
        self.possible: list[Assignment] = []
        self.final: Truth = False

    def candidates(self) -> list[Assignment]:
        """Give every value that may hold, the certain one first."""
        return [*([self.sure] if self.sure else []), *self.possible]

    def settles(self, accepts: Callable[[str], bool]) -> Truth:
        """Whether the value is an accepted one whatever is undecided; False too where no line gives any."""
        answers = {accepts(candidate.value) for candidate in self.candidates()}
        if self.sure is None:
            answers.add(False)
        return answers.pop() if len(answers) == 1 else None

    def assign(self, new: Assignment, *, usable: bool, final: bool) -> None:
        """Take a value, unless an earlier ``:=`` stands against it.

        One that is not ``usable`` (no mode, nobody's name) is left out, and yet a ``:=`` with it counts.
        """
        if self.final:
            return
        doubt = new.doubt or ("an earlier := that is undecided" if self.final is None else "")
        if usable and doubt:
            self.possible.append(new._replace(doubt=doubt))
        elif usable:
            self.sure, self.possible = new, []
        if final:
            self.final = None if doubt else True


class Outcome:
    """What the rules make of an event.

    Attributes:
        dropped: programs that another ``RUN=`` or ``RUN:=`` keeps from running; ``doubt`` says which.
        tags: name to whether it is set for certain; the same for ``links``, below ``/dev``.
        properties: those set by rules and the kernel; None where the value is not known.
        undecided: comparisons that could not be decided on lines that would have assigned something.
    """

    def __init__(self) -> None:
        self.mode = Slot()
        self.owner = Slot()
        self.group = Slot()
        self.run: list[Command] = []
        self.dropped: list[Command] = []
        self.tags: dict[str, bool] = {}
        self.links: dict[str, bool] = {}
        self.properties: dict[str, str | None] = {}
        self.undecided: list[Assignment] = []


def command_words(command: str) -> list[str]:
    """Split a command of ``RUN`` into words as udev does: blanks separate, quotes group, nothing escapes."""
    words: list[str] = []
    word: list[str] | None = None
    quote = ""
    for character in command:
        if quote:
            if character == quote:
                quote = ""
            elif word is not None:
                word.append(character)
        elif character in "'\"":
            quote, word = character, word if word is not None else []
        elif character in " \t\n\r":
            if word is not None:
                words.append("".join(word))
            word = None
        else:
            word = [] if word is None else word
            word.append(character)
    if word is not None:
        words.append("".join(word))
    return words
