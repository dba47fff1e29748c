"""What grub-mkconfig will read: /etc/default/grub and, on Debian and Ubuntu, /etc/default/grub.d/*.cfg.

Source: the GRUB manual, "Simple configuration handling"; /usr/sbin/grub-mkconfig and /etc/grub.d/10_linux of
Debian 12 for the order in which the variables come together on a ``linux`` line.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cached_property

from tpu_image.formats import FormatError
from tpu_image.formats.grub_script import GrubWord, kernel_text, scan
from tpu_image.formats.shell_assignments import ShellFile, Value, Variables, evaluate

LINUX = "GRUB_CMDLINE_LINUX"
LINUX_DEFAULT = "GRUB_CMDLINE_LINUX_DEFAULT"
LINUX_RECOVERY = "GRUB_CMDLINE_LINUX_RECOVERY"

TOTAL_LIMIT = 1024 * 1024
"""Characters of all files together at most."""

# grub-mkconfig starts with none of these set; any other variable may come from the environment.
_INITIAL = dict.fromkeys((LINUX, LINUX_DEFAULT, LINUX_RECOVERY), "")


class GrubDefaults:
    """The files, in the order in which grub-mkconfig sources them."""

    def __init__(self, files: tuple[ShellFile, ...]) -> None:
        self.files = files

    @classmethod
    def parse(cls, texts: Sequence[tuple[str, str]]) -> GrubDefaults:
        """Read (path, text) pairs; what only a shell could compute becomes unknown.

        Raises:
            FormatError: the files are longer than any settings are.
        """
        if sum(len(text) for _, text in texts) > TOTAL_LIMIT:
            raise FormatError(f"the GRUB defaults are longer than {TOTAL_LIMIT} characters")
        return cls(tuple(ShellFile.parse(path, text) for path, text in texts))

    @cached_property
    def variables(self) -> Variables:
        """What every variable holds in the end."""
        return evaluate(self.files, _INITIAL)

    def value(self, name: str) -> Value:
        """The value of a variable; empty where it is unset."""
        return self.variables.get(name) or Value()

    def known(self, name: str) -> str | None:
        """The value where it is wholly known, empty where it is unset; None where it is not known."""
        return self.value(name).known

    @property
    def makes_recovery(self) -> bool:
        """Whether recovery entries are, or may be, made."""
        return self.known("GRUB_DISABLE_RECOVERY") != "true"

    @property
    def normal(self) -> str:
        """What an ordinary entry's ``linux`` line will have behind ``ro``."""
        return f"{self.value(LINUX).text} {self.value(LINUX_DEFAULT).text}"

    @property
    def recovery(self) -> str:
        """What a recovery entry's ``linux`` line will have behind ``ro``, its own first word left out."""
        return f"{self.value(LINUX_RECOVERY).text} {self.value(LINUX).text}"

    def deciding(self, name: str) -> tuple[str, int]:
        """The file and line that give a variable its value last; an empty path where none does."""
        for file in reversed(self.files):
            statement = file.last_touching(name)
            if statement is not None:
                return file.path, statement.line
        return "", 0


def words_on_line(text: str) -> list[GrubWord]:
    """Give the words that GRUB takes for arguments where a text stands on a ``linux`` line: up to a ``;`` or ``#``.

    Raises:
        FormatError: GRUB cannot read the text.
    """
    items = itertools.takewhile(lambda item: isinstance(item, GrubWord), scan(text))
    return [word for word in items if isinstance(word, GrubWord)]


def kernel_view(text: str) -> str:
    """Give the command line that the kernel gets when a text stands on a ``linux`` line of grub.cfg.

    Raises:
        FormatError: GRUB cannot read the text.
    """
    return kernel_text([argument for word in words_on_line(text) for argument in word.expand({})])
