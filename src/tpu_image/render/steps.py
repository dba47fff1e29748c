"""What a rendered plan does, in order, whatever language it is written in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tpu_image import __version__
from tpu_image.catalogue import activation
from tpu_image.catalogue.activation import Command, Note
from tpu_image.catalogue.requirement import Profile
from tpu_image.trees.memory import File, Node, Symlink
from tpu_image.trees.overlay import Overlay

SHARED_FILES = ("/etc/environment", "/etc/security/limits.conf")
"""Files that every machine has with lines of its own: on an unknown machine ours are added to them."""


class RenderError(Exception):
    """A plan cannot be rendered: one line says why."""


@dataclass(frozen=True)
class Step:
    """One path that becomes something else; None is nothing there."""

    path: str
    before: Node | None
    after: Node | None

    @property
    def adds_lines(self) -> bool:
        """Whether the file's lines are added to one that the machine may have, instead of replacing it."""
        return isinstance(self.after, File) and self.before is None and self.path in SHARED_FILES


@dataclass(frozen=True)
class Steps:
    """A whole plan: its paths, each directory before what is in it, and what makes them take effect."""

    steps: Sequence[Step]
    commands: Sequence[Command]
    notes: Sequence[Note]
    heading: str
    """Says in one line who made it and for what."""


def steps_of(overlay: Overlay, profile: Profile) -> Steps:
    """Give what a plan changes, and what follows.

    Raises:
        RenderError: a path holds characters that no script should.
        TreeError: what the base has at a changed path cannot be read.
    """
    steps = [Step(path, overlay.before(path), overlay.written[path]) for path in sorted(overlay.written)]
    changed = [step for step in steps if step.before != step.after]
    paths = [step.path for step in changed]
    links = [step.path for step in changed if isinstance(step.after, Symlink)]
    targets = [step.after.target for step in changed if isinstance(step.after, Symlink)]
    for path in (*paths, *targets):
        if not path.isprintable():
            raise RenderError(f"{path!r} holds characters that do not print; rename what leads there")
    generations = ", ".join(generation.name for generation in profile.generations)
    return Steps(
        changed,
        activation.commands(paths, profile, links=links),
        activation.notes(paths),
        f"Made by tpu-image {__version__} for {profile.platform.value}, TPU {generations}.",
    )


def is_plain_text(content: bytes) -> bool:
    """Whether a file can stand in a script as it is: UTF-8 that prints, in whole lines."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return text.endswith("\n") and all(line.replace("\t", " ").isprintable() for line in text.split("\n"))


def packed(content: bytes) -> str:
    """Give a file as base64 of its gzip form: the same text each time."""
    import base64
    import gzip

    return base64.b64encode(gzip.compress(content, mtime=0)).decode("ascii")
