"""A plan as a POSIX shell script that needs nothing but what every Debian and Ubuntu has."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from tpu_image.plan.change import Change
from tpu_image.render.steps import Steps, adds_lines, is_plain_text, packed
from tpu_image.trees.memory import Directory, File, Symlink

_LINE = 76
"""Characters in a line of base64, as in MIME (RFC 2045)."""


def render(steps: Steps) -> str:
    """Write the script: it checks every path first, then changes them, and changes nothing when run again."""
    parts = [
        "#!/bin/sh",
        "# Makes this machine, or the root it is run in by chroot, meet what Cloud TPU asks of it.",
        f"# {steps.heading}",
        _prelude(),
        "# Look before the first change.",
        *(line for change in steps.changes for line in _expectation(change)),
        "",
        "# Change.",
        *(line for change in steps.changes for line in _change(change)),
        "",
        *_ending(steps),
    ]
    return "\n".join(parts) + "\n"


def _prelude() -> str:
    return Path(__file__).with_name("prelude.sh").read_text("utf-8")


def _expectation(change: Change) -> Iterator[str]:
    if not isinstance(change.after, File):
        return
    before = _hash(change.before.content) if isinstance(change.before, File) else ""
    yield shlex.join(["expect", change.path, before, _hash(change.after.content)])


def _hash(content: bytes) -> str:
    import hashlib

    return hashlib.sha256(content).hexdigest()


def _change(change: Change) -> Iterator[str]:
    after = change.after
    if after is None:
        yield shlex.join(["absent", change.path])
    elif isinstance(after, Symlink):
        yield shlex.join(["link", change.path, after.target, f"{after.uid}:{after.gid}"])
    elif isinstance(after, Directory):
        verb = "directory" if change.before is None else "permissions"
        yield shlex.join([verb, change.path, *_access(after)])
    else:
        yield from _file(change, after)


def _file(change: Change, after: File) -> Iterator[str]:
    command = ["lines"] if adds_lines(change) else ["file"]
    command += [change.path, *_access(after)]
    # dash 0.5.12 loses a byte beyond ASCII at which a line begins to differ from the end of a here-document.
    plain = is_plain_text(after.content) and after.content.isascii()
    if not adds_lines(change):
        command += ["text" if plain else "packed", "no" if change.before is None else "yes"]
    text = after.content.decode("utf-8") if plain else _in_lines(packed(after.content))
    end = _delimiter(text)
    yield f"{shlex.join(command)} <<'{end}'\n{text}{end}"


def _access(node: File | Directory) -> list[str]:
    return [f"{node.mode:o}", f"{node.uid}:{node.gid}"]


def _in_lines(text: str) -> str:
    return "".join(f"{text[at : at + _LINE]}\n" for at in range(0, len(text), _LINE))


def _delimiter(text: str) -> str:
    """Find an end of a here-document that is no line of it."""
    lines = set(text.split("\n"))
    end, number = "END", 0
    while end in lines:
        number += 1
        end = f"END{number}"
    return end


def _ending(steps: Steps) -> Iterator[str]:
    commands = {
        offline: [
            shlex.join(["activate", str(c.seconds), c.why, *c.arguments])
            for c in steps.commands
            if c.offline == offline
        ]
        for offline in (True, False)
    }
    yield 'if [ "$changed" = 0 ]; then'
    yield '    say "nothing to change"'
    yield "    exit 0"
    yield "fi"
    yield from commands[True]
    if commands[False]:
        yield "if running; then"
        yield from (f"    {command}" for command in commands[False])
        yield "fi"
    for note in steps.notes:
        yield shlex.join(["say", note.text])
    yield 'exit "$status"'
