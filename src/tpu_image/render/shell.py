"""A plan as a POSIX shell script that needs nothing but what every Debian and Ubuntu has."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from tpu_image.render.steps import Step, Steps, is_plain_text, packed
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
        *(line for step in steps.steps for line in _expectation(step)),
        "",
        "# Change.",
        *(line for step in steps.steps for line in _change(step)),
        "",
        *_ending(steps),
    ]
    return "\n".join(parts) + "\n"


def _prelude() -> str:
    return Path(__file__).with_name("prelude.sh").read_text("utf-8")


def _expectation(step: Step) -> Iterator[str]:
    if not isinstance(step.after, File):
        return
    before = _hash(step.before.content) if isinstance(step.before, File) else ""
    yield shlex.join(["expect", step.path, before, _hash(step.after.content)])


def _hash(content: bytes) -> str:
    import hashlib

    return hashlib.sha256(content).hexdigest()


def _change(step: Step) -> Iterator[str]:
    after = step.after
    if after is None:
        yield shlex.join(["absent", step.path])
    elif isinstance(after, Symlink):
        yield shlex.join(["link", step.path, after.target, f"{after.uid}:{after.gid}"])
    elif isinstance(after, Directory):
        verb = "directory" if step.before is None else "permissions"
        yield shlex.join([verb, step.path, *_access(after)])
    else:
        yield from _file(step, after)


def _file(step: Step, after: File) -> Iterator[str]:
    command = ["lines"] if step.adds_lines else ["file"]
    command += [step.path, *_access(after)]
    plain = is_plain_text(after.content)
    if not step.adds_lines:
        command += ["text" if plain else "packed", "no" if step.before is None else "yes"]
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
