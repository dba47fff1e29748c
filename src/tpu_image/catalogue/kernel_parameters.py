"""The kernel parameters of the document: what each comes to on a command line, and how one is put right.

Sources: the document, section "Parametri del kernel" (R7); Linux: ``idle_setup`` (arch/x86/kernel/process.c),
``intel_iommu_setup`` (drivers/iommu/intel/iommu.c), ``setup_transparent_hugepage`` (mm/huge_memory.c).

The document's own recipe puts `` transparent_hugepage=always`` into the middle of a token, behind the first
characters that its ``sed`` knows; :func:`torn_edits` takes that back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tpu_image.formats import FormatError
from tpu_image.formats.edits import Edit, apply_edits
from tpu_image.formats.grub_defaults import LINUX, GrubDefaults, kernel_view
from tpu_image.formats.kernel_cmdline import KernelCommandLine, Token

UNKNOWN = "\0"
"""Stands in a command line for text that only a shell could compute."""

HUGE_PAGES = "transparent_hugepage=always"

# The characters that the recipe's sed steps over: what it tears apart goes on with any other.
_RECIPE_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_= ")
_TEMPLATE_RESIDUE = ("", "None")

ROUNDS = 4
"""Times that a line is looked at again after an edit: what the recipe tore comes back before the rest."""

EditGroup = list[Edit]
"""Edits that make sense together alone."""


class Reading(NamedTuple):
    """What a parameter comes to on one command line."""

    lacking: tuple[str, ...] = ()
    """The wanted options that are not in effect."""
    undecided: tuple[str, ...] = ()
    """The wanted options that an unknown part of the line decides."""
    mangled: tuple[str, ...] = ()
    """Tokens meant as this parameter that the kernel does not take for it, as written."""
    opposed: str = ""
    """The token that turns a lacking option off."""

    @property
    def in_effect(self) -> bool:
        """Whether every wanted option is."""
        return not (self.lacking or self.undecided)

    @property
    def is_clean(self) -> bool:
        """Whether it is in effect and nothing beside it is damaged."""
        return self.in_effect and not self.mangled


class KernelParameter(ABC):
    """A parameter and the value that it is to have.

    Attributes:
        wanted: the options that it is to have; one of them, the value, where it takes no list.
        put_in_by_recipe: whether it is what the document's recipe puts into the middle of tokens.
    """

    def __init__(self, name: str, wanted: tuple[str, ...], *, put_in_by_recipe: bool = False) -> None:
        self.name = name
        self.wanted = wanted
        self.put_in_by_recipe = put_in_by_recipe

    @property
    def token(self) -> str:
        """How it is written on the command line."""
        return f"{self.name}={','.join(self.wanted)}"

    def read(self, line: KernelCommandLine) -> Reading:
        """Say what the parameter comes to on a line."""
        state: dict[str, Token | bool | None] = dict.fromkeys(self.wanted, False)
        for token in line.parameters:
            if UNKNOWN in token.text:
                state = dict.fromkeys(self.wanted, None)
            elif token.name == self.name:
                self.take(token, state)
        for token in line.parameters:
            if self.is_overruled(token):
                state = dict.fromkeys(self.wanted, token)
        lacking = tuple(
            option for option, value in state.items() if value is False or isinstance(value, Token)
        )
        opposing = [value.text for value in state.values() if isinstance(value, Token)]
        return Reading(
            lacking,
            tuple(option for option, value in state.items() if value is None),
            tuple(dict.fromkeys(t.text for t in line.parameters if self.is_mangled(t, lacking))),
            opposing[-1] if opposing else "",
        )

    def is_overruled(self, token: Token) -> bool:
        """Whether a token of another parameter turns this one off, wherever it stands."""
        del token
        return False

    @abstractmethod
    def take(self, token: Token, state: dict[str, Token | bool | None]) -> None:
        """Let an occurrence take effect: True for an option turned on, the token for one turned off."""

    @abstractmethod
    def is_mangled(self, token: Token, lacking: tuple[str, ...]) -> bool:
        """Whether a token was meant as this parameter and the kernel does not take it so."""

    @abstractmethod
    def edits(self, line: KernelCommandLine, *, complete: bool) -> list[EditGroup]:
        """Give the edits that put right what stands on a line; nothing is added that has no token there.

        ``complete`` says whether a token that lacks options gets them.
        """

    def residue(self, token: Token) -> str | None:
        """What stands behind the equals sign where the name was lost (``=poll``, ``None=poll``)."""
        left, equals, right = token.text.partition("=")
        return right if equals and left in _TEMPLATE_RESIDUE else None


class ValueParameter(KernelParameter):
    """A parameter with one value, the last of which that the kernel understands wins.

    ``understood`` are all the values that the kernel understands; it ignores others.
    """

    def __init__(
        self, name: str, value: str, understood: tuple[str, ...], *, put_in_by_recipe: bool = False
    ) -> None:
        super().__init__(name, (value,), put_in_by_recipe=put_in_by_recipe)
        self.understood = understood

    @property
    def value(self) -> str:
        """The value that it is to have."""
        return self.wanted[0]

    def take(self, token: Token, state: dict[str, Token | bool | None]) -> None:
        """Let an occurrence take effect."""
        if token.value in self.understood:
            state[self.value] = True if token.value == self.value else token

    def is_mangled(self, token: Token, lacking: tuple[str, ...]) -> bool:
        """Whether a token was meant as this parameter and the kernel does not take it so."""
        if UNKNOWN in token.text:
            return False
        if token.name == self.name:
            return token.value not in self.understood
        return self.residue(token) == self.value or (bool(lacking) and token.text == "None")

    def edits(self, line: KernelCommandLine, *, complete: bool) -> list[EditGroup]:
        """Give the edits that put right what stands on a line."""
        del complete
        groups = torn_edits(line) if self.put_in_by_recipe else []
        for token in line.parameters:
            if UNKNOWN in token.text or (self.put_in_by_recipe and torn_tail(token)):
                continue
            own = token.name == self.name and token.value != self.value
            if own or self.residue(token) == self.value:
                groups.append([Edit(token.start, token.end, self.token + self._rest(token))])
        return groups

    def _rest(self, token: Token) -> str:
        """Other parameters that were written behind a comma instead of a blank."""
        first, comma, rest = (token.value or "").partition(",")
        return f" {rest}" if comma and first == self.value and "=" in rest else ""


class ListParameter(KernelParameter):
    """A parameter with a list of options, which add up over all of its occurrences.

    ``switches`` are (prefix, option, on) in the order in which the kernel tries them: it compares prefixes.
    ``overruled_by`` are another parameter and its option that turn all of this one off.
    """

    def __init__(
        self,
        name: str,
        wanted: tuple[str, ...],
        switches: tuple[tuple[str, str, bool], ...],
        overruled_by: tuple[str, str],
    ) -> None:
        super().__init__(name, wanted)
        self.switches = switches
        self.overruled_by = overruled_by

    def is_overruled(self, token: Token) -> bool:
        """Whether a token of another parameter turns this one off, wherever it stands."""
        name, option = self.overruled_by
        options = (token.value or "").split(",") if name and token.name == name else []
        return any(written.startswith(option) for written in options)

    def switch(self, written: str) -> tuple[str, bool] | None:
        """What one written option does."""
        return next(((name, on) for prefix, name, on in self.switches if written.startswith(prefix)), None)

    def take(self, token: Token, state: dict[str, Token | bool | None]) -> None:
        """Let an occurrence take effect."""
        for written in (token.value or "").split(","):
            if (switched := self.switch(written)) is not None:
                name, on = switched
                state[name] = True if on else token

    def is_mangled(self, token: Token, lacking: tuple[str, ...]) -> bool:
        """Whether a token was meant as this parameter and the kernel does not take it so."""
        if UNKNOWN in token.text:
            return False
        if token.name == self.name:
            return token.value in (None, *_TEMPLATE_RESIDUE)
        if self.distinctive & set((self.residue(token) or "").split(",")):
            return True
        return bool(lacking) and (token.text == "None" or self.strayed(token, lacking))

    @property
    def distinctive(self) -> set[str]:
        """The options by which the parameter is known: all but the first, a plain ``on`` that others have too."""
        return set(self.wanted[1:])

    def strayed(self, token: Token, options: tuple[str, ...]) -> bool:
        """Whether a token of another parameter ends in options of this one (``always,sm_on``)."""
        return bool(self.distinctive & set(options) & set((token.value or "").split(",")[1:]))

    def edits(self, line: KernelCommandLine, *, complete: bool) -> list[EditGroup]:
        """Give the edits that put right what stands on a line."""
        groups = torn_edits(line, self)
        if groups:
            # What comes back may be all that was lacking: look again afterwards.
            return groups
        overruling = [t for t in line.parameters if UNKNOWN not in t.text and self.is_overruled(t)]
        if overruling:
            return [[Edit(t.start, t.end, self._without_overruling(t))] for t in overruling]
        tokens = [t for t in line.parameters if UNKNOWN not in t.text and self._is_own(t)]
        options = [self._put_right(token) for token in tokens]
        if complete and options:
            present = {option for own in options for option in own}
            options[-1] = [*options[-1], *(option for option in self.wanted if option not in present)]
        return [
            [Edit(token.start, token.end, f"{self.name}={','.join(own)}")]
            for token, own in zip(tokens, options, strict=True)
            if f"{self.name}={','.join(own)}" != token.text
        ]

    def _without_overruling(self, token: Token) -> str:
        """Another parameter's token without what overrules; empty where it says nothing else."""
        name, option = self.overruled_by
        kept = [o for o in (token.value or "").split(",") if not o.startswith(option)]
        return f"{name}={','.join(kept)}" if kept else ""

    def is_own_tail(self, tail: str) -> bool:
        """Whether something behind a comma is options of this parameter alone."""
        return tail.startswith(",") and set(tail[1:].split(",")) <= set(self.wanted)

    def _is_own(self, token: Token) -> bool:
        return token.name == self.name or self.is_mangled(token, ())

    def _put_right(self, token: Token) -> list[str]:
        """The options of a token with those turned on that it turns off."""
        written = (self.residue(token) or token.value or "").split(",")
        result = []
        for option in written:
            switched = self.switch(option)
            if option not in _TEMPLATE_RESIDUE:
                result.append(option if switched is None or switched[1] else switched[0])
        return list(dict.fromkeys(result)) or list(self.wanted)


def readings(defaults: GrubDefaults, parameter: KernelParameter) -> list[Reading]:
    """Say what a parameter comes to on the entries that the defaults make: ordinary ones and recovery.

    Raises:
        FormatError: GRUB could not read what the defaults put into grub.cfg.
    """
    made = [defaults.normal, *([defaults.recovery] if defaults.makes_recovery else ())]
    try:
        return [read_as_grub_passes(text, parameter) for text in made]
    except FormatError as error:
        path, line = defaults.deciding(LINUX)
        reason = f"{path}: update-grub will stop, since GRUB cannot read {LINUX}: {error.reason}"
        raise FormatError(reason, line) from error


def read_as_grub_passes(text: str, parameter: KernelParameter) -> Reading:
    """Say what a parameter comes to where a text stands on a ``linux`` line of grub.cfg."""
    return parameter.read(KernelCommandLine.parse(kernel_view(text)))


def repaired(text: str, parse: Callable[[str], KernelCommandLine], parameter: KernelParameter) -> str:
    """Give a text, cut into tokens by ``parse``, with what stands there of a parameter put right."""
    for _ in range(ROUNDS):
        groups = parameter.edits(parse(text), complete=True)
        edited = apply_edits(text, [edit for group in groups for edit in group])
        if edited == text:
            break
        text = edited
    return text


def torn_tail(token: Token) -> str:
    """What the document's recipe pushed its insertion in front of; empty where it did not."""
    tail = token.text.removeprefix(HUGE_PAGES)
    torn = tail != token.text and tail and tail[0] not in _RECIPE_CHARACTERS
    return tail if torn else ""


def torn_edits(
    line: KernelCommandLine, owner: ListParameter | None = None, before: str = ""
) -> list[EditGroup]:
    """Give the edits that move the recipe's insertions behind the tokens that they tore apart.

    With an ``owner``, only where options of that parameter were torn off; with ``before``, only in front of that text.
    """
    groups = []
    parameters = line.parameters
    for index, token in enumerate(parameters):
        tail = torn_tail(token)
        unwanted = owner and not owner.strayed(token, owner.wanted)
        if tail and not unwanted and (tail.startswith(before) if before else UNKNOWN not in tail):
            groups.append(_mended(line.text, parameters, index))
    return groups


def _mended(text: str, parameters: Sequence[Token], index: int) -> EditGroup:
    token, tail = parameters[index], torn_tail(parameters[index])
    first = index
    while first and parameters[first - 1].text == HUGE_PAGES:
        first -= 1
    start = parameters[first].start
    glued = first > 0 and text[parameters[first - 1].end : start] == " "
    torn = parameters[first - 1].name if glued else ""
    if any(parameter.is_own_tail(tail) and torn != parameter.name for parameter in LISTS):
        # Nobody tore that off: it was written here by hand, and the parameter itself is added elsewhere.
        return [Edit(token.start + len(HUGE_PAGES), token.end, "")]
    # The recipe writes one blank in front of what it puts in.
    if start and text[start - 1] == " ":
        start -= 1
    return [
        Edit(start, token.start + len(HUGE_PAGES), ""),
        Edit(token.end, token.end, f" {HUGE_PAGES}"),
    ]


IDLE = ValueParameter("idle", "poll", ("poll", "halt", "nomwait"))
"""Of several the last decides (``boot_option_idle_override``); others, ``mwait`` since Linux 3.9, are ignored."""

IOMMU = ListParameter(
    "intel_iommu",
    ("on", "sm_on"),
    (("on", "on", True), ("off", "on", False), ("sm_on", "sm_on", True), ("sm_off", "sm_on", False)),
    ("iommu", "off"),
)
"""``on`` turns the IOMMU on, ``sm_on`` scalable mode; ``off`` behind ``on`` turns it off again."""

THP = ValueParameter("transparent_hugepage", "always", ("always", "madvise", "never"), put_in_by_recipe=True)
"""``always`` with anything behind it is ignored: the kernel compares the whole value."""

LISTS = (IOMMU,)

PARAMETERS: tuple[KernelParameter, ...] = (IDLE, IOMMU, THP)
"""In the order of the document, which is the order in which they are written."""
