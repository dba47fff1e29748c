"""What a rendered plan does, in order, whatever language it is written in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tpu_image import __version__
from tpu_image.catalogue import activation
from tpu_image.catalogue.activation import Command, Note
from tpu_image.catalogue.requirement import Profile
from tpu_image.plan.change import Change, Plan
from tpu_image.trees.memory import File, Symlink
from tpu_image.trees.overlay import Overlay

SHARED_FILES = ("/etc/environment", "/etc/security/limits.conf")
"""Files that every machine has with lines of its own: on an unknown machine ours are added to them."""


class RenderError(Exception):
    """A plan cannot be rendered: one line says why."""


def adds_lines(change: Change) -> bool:
    """Whether a file's lines are added to one that the machine may have, instead of replacing it."""
    return isinstance(change.after, File) and change.before is None and change.path in SHARED_FILES


@dataclass(frozen=True)
class Steps:
    """A whole plan: its changes, each directory before what is in it, and what makes them take effect."""

    changes: Sequence[Change]
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
    changes = Plan.from_overlay(overlay).changes
    paths = [change.path for change in changes]
    links = [change.path for change in changes if isinstance(change.after, Symlink)]
    targets = [change.after.target for change in changes if isinstance(change.after, Symlink)]
    for path in (*paths, *targets):
        if not path.isprintable():
            raise RenderError(f"{path!r} holds characters that do not print; rename what leads there")
    generations = ", ".join(generation.name for generation in profile.generations)
    return Steps(
        changes,
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
