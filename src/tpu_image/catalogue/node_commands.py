"""Programs that a udev rule runs on a device node: they come after its mode was set.

Sources: udev(7): ``RUN`` is executed after all rules are processed; chmod(1).
"""

from __future__ import annotations

import posixpath
from typing import NamedTuple

from tpu_image.catalogue.requirement import Evidence
from tpu_image.formats.udev_model import Command, Outcome, command_words
from tpu_image.formats.udev_tokens import parse_mode

_SHELLS = ("sh", "bash", "dash")
_CHANGING = ("chmod", "chown", "chgrp", "setfacl")


class Change(NamedTuple):
    """What a command makes of a node: its permission bits, None where that cannot be told."""

    mode: int | None
    evidence: Evidence


def last_change(outcome: Outcome, node: str, wanted: str) -> Change | None:
    """Find what the last command that changes the access to a node makes of it; None where none does."""
    found = None
    for command in outcome.run:
        for words in _simple_commands(command):
            name = posixpath.basename(words[0])
            if name in _CHANGING and node in words[1:]:
                told = f"{node}: {' '.join(words)}" + (f", if {command.doubt}" if command.doubt else "")
                mode = _mode(words) if name == "chmod" and not command.doubt else None
                found = Change(mode, Evidence(command.path, command.line, told, wanted))
    return found


def _simple_commands(command: Command) -> list[list[str]]:
    """Split a command of ``RUN``, seen through ``sh -c``, into commands that are words alone."""
    words = [] if command.builtin else command_words(command.value)
    if len(words) > 2 and posixpath.basename(words[0]) in _SHELLS and words[1] == "-c":
        text = words[2].replace("&&", ";").replace("||", ";")
        return [part for piece in text.split(";") if (part := command_words(piece))]
    return [words] if words else []


def _mode(words: list[str]) -> int | None:
    """Read the mode that chmod(1) is given, where it is written in octal."""
    operands = [word for word in words[1:] if not word.startswith("-")]
    return parse_mode(operands[0]) if operands else None
