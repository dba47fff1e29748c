"""What a person reads when a command cannot do its work: one line a problem, and the exit status."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence

import click

from tpu_image.cli import INTERRUPTED, UNUSABLE
from tpu_image.report.printable import printable


class UnusableError(Exception):
    """The command or its target is unusable; each argument is a line: where, what, what to do."""


@contextlib.contextmanager
def inside(root: str) -> Iterator[None]:
    """Name the root before a path of its tree, which otherwise reads like one of this machine.

    Raises:
        UnusableError: in place of a :class:`TreeError` about something below the root.
    """
    from tpu_image.trees.base import TreeError

    try:
        yield
    except TreeError as error:
        if error.path == root or os.path.realpath(root) == "/":
            raise
        raise UnusableError(f"{root}: {error}") from error


def explain(error: BaseException) -> int:
    """Print what a failure means on standard error, and give the exit status."""
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        report("interrupted")
        return INTERRUPTED
    if isinstance(error, click.UsageError) and error.ctx and error.message == error.ctx.get_help():
        click.echo(error.message, err=True)  # of a group whose command was left out
        return UNUSABLE
    for line in _lines(error):
        report(line)
    return UNUSABLE


def report(line: str) -> None:
    """Print one message on standard error."""
    if sys.stderr is not None:
        click.echo(f"tpu-image: {printable(line)}", err=True)


def _lines(error: BaseException) -> Sequence[str]:
    from tpu_image.agents.errors import AgentError
    from tpu_image.bases.errors import BaseError
    from tpu_image.cache_folder import CacheError
    from tpu_image.catalogue import UnknownRequirementError
    from tpu_image.catalogue.choices import ChoiceError
    from tpu_image.customise.session import CustomisationError
    from tpu_image.disks.errors import DiskError
    from tpu_image.downloads.errors import DownloadError
    from tpu_image.formats import FormatError
    from tpu_image.lab.errors import LabError
    from tpu_image.output import OutputError
    from tpu_image.trees.base import TreeError

    if isinstance(error, UnusableError):
        return [str(line) for line in error.args]
    if isinstance(error, click.UsageError):
        help_command = f"{error.ctx.command_path} --help" if error.ctx else "tpu-image --help"
        message = " ".join(error.format_message().split())  # click lists choices on lines of their own
        return [f"{message.rstrip('.')}; see {help_command}"]
    if isinstance(error, click.ClickException):
        return [error.format_message()]
    here = (AgentError, BaseError, CacheError, CustomisationError, DiskError, DownloadError, LabError)
    if isinstance(error, (*here, ChoiceError, FormatError, OutputError, TreeError, UnknownRequirementError)):
        return [str(error.args[0])]
    if isinstance(error, OSError):
        return [_system_error(error)]
    return [
        f"internal error: {type(error).__name__}: {error}; run it again with --debug and report what it says"
    ]


def _system_error(error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"{_name(error.filename)}: {reason}" if error.filename is not None else reason


def _name(filename: object) -> str:
    return filename.decode("utf-8", "surrogateescape") if isinstance(filename, bytes) else str(filename)
