"""Boot entries by the Boot Loader Specification: ``/boot/loader/entries/*.conf``.

Source: the UAPI Group's Boot Loader Specification, "Type #1 Boot Loader Specification Entries". GRUB as
Fedora builds it replaces ``$name`` in ``options`` by variables, ``$kernelopts`` among them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tpu_image.formats import FormatError
from tpu_image.formats.edits import Edit, apply_edits

SIZE_LIMIT = 64 * 1024
"""Characters of an entry at most."""

_LINE = r"[ \t]*([^\s#]\S*)[ \t]+([^\r\n]*?)[ \t]*\r?"
_VARIABLE = r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})"


class EntryField(NamedTuple):
    """One ``key value`` line; the value is at ``start`` up to ``end`` of the text."""

    key: str
    value: str
    start: int
    end: int
    line: int


class BootLoaderEntry(NamedTuple):
    """One entry as written."""

    text: str
    fields: tuple[EntryField, ...]

    @classmethod
    def parse(cls, text: str) -> BootLoaderEntry:
        """Read an entry; lines that are no ``key value`` are kept and mean nothing.

        Raises:
            FormatError: it is longer than :data:`SIZE_LIMIT`.
        """
        if len(text) > SIZE_LIMIT:
            raise FormatError(f"longer than {SIZE_LIMIT} characters")
        fields = []
        start = 0
        for number, line in enumerate(text.split("\n"), start=1):
            if match := re.fullmatch(_LINE, line):
                at = start + match.start(2)
                fields.append(
                    EntryField(match.group(1), match.group(2), at, at + len(match.group(2)), number)
                )
            start += len(line) + 1
        return cls(text, tuple(fields))

    def all(self, key: str) -> tuple[EntryField, ...]:
        """The lines with a key, in order."""
        return tuple(field for field in self.fields if field.key == key)

    def get(self, key: str) -> str:
        """The value of the first line with a key; empty where there is none."""
        return next((field.value for field in self.fields if field.key == key), "")

    def options(self, variables: Mapping[str, str]) -> str:
        """Give the kernel command line: every ``options`` line, joined, where variables have these values."""
        return " ".join(substitute(field.value, variables) for field in self.all("options"))

    def variables(self) -> set[str]:
        """Names of the variables in the options."""
        return {a or b for field in self.all("options") for a, b in re.findall(_VARIABLE, field.value)}

    def with_options(self, options: str) -> BootLoaderEntry:
        """Give the entry with other text on its last ``options`` line, which is added where there is none."""
        fields = self.all("options")
        if fields:
            return self.edited([Edit(fields[-1].start, fields[-1].end, options)])
        newline = "" if not self.text or self.text.endswith("\n") else "\n"
        return self.edited([Edit(len(self.text), len(self.text), f"{newline}options {options}\n")])

    def edited(self, edits: Iterable[Edit]) -> BootLoaderEntry:
        """Give the entry after edits to its text."""
        return BootLoaderEntry.parse(apply_edits(self.text, edits))


def substitute(text: str, variables: Mapping[str, str]) -> str:
    """Put the values of variables in their places; one that is not given is empty, as in GRUB."""
    return re.sub(_VARIABLE, lambda match: variables.get(match.group(1) or match.group(2), ""), text)
