"""What is to be executed inside an image, as plain values that any executor can carry out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

GIVEN = "/run/tpu-image"
"""Where a session's files and folders are in the image while it runs; in memory, so that nothing of it stays."""

TIME_LIMIT = 2 * 60 * 60
"""Seconds that a session may take unless told otherwise."""


class Step(NamedTuple):
    """One program to run inside an image: an absolute path and its arguments; ``name`` is what messages call it."""

    name: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Session:
    """Steps in order, each only after the one before succeeded.

    Attributes:
        files: content by name, to be found executable below :data:`GIVEN`.
        folders: folders of this machine by name, to be found below :data:`GIVEN`; nothing is ever written to them.
        environment: variables for all steps, beside those that every session has.
        time_limit: seconds for all steps together.
    """

    steps: tuple[Step, ...]
    files: Mapping[str, bytes] = field(default_factory=dict)
    folders: Mapping[str, Path] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    time_limit: float = TIME_LIMIT


class Listener(Protocol):
    """Is told how a session goes on."""

    def step(self, name: str) -> None:
        """A step begins."""

    def line(self, text: str) -> None:
        """A step wrote a line; safe to print."""

    def waiting(self, name: str, seconds: float) -> None:
        """A step is still at work, seconds after it began; told about once a second."""


class Executor(Protocol):
    """A way to run a session inside the system on a disk."""

    method: str
    """What the manifest calls it."""

    def require(self) -> None:
        """See at once whether anything can be executed here.

        Raises:
            CustomisationError: it cannot; the message says what would be needed.
        """

    def execute(self, disk: BinaryIO, session: Session, listener: Listener) -> None:
        """Run a session; afterwards the disk holds what it changed, its file systems clean.

        Args:
            disk: a raw disk in a file, open for reading and writing.
            session: what to run.
            listener: is told how it goes on.

        Raises:
            CustomisationError: a step failed, or nothing can be executed here.
        """


class CustomisationError(Exception):
    """The image cannot be made as wanted: ``message`` is one line, ``output`` the last lines of what was run."""

    def __init__(self, message: str, output: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.output = tuple(output)
