"""The command ``tpu-image`` and its commands, each in a module of its own that is loaded when it is used."""

from __future__ import annotations

import importlib

import click

from tpu_image import __version__
from tpu_image.cli import UNUSABLE
from tpu_image.cli.options import debug_option, examples

COMMANDS = ("check", "apply", "build", "boot", "lab", "render", "explain", "schema", "version")
"""In the order of ``--help``; the module ``tpu_image.cli.NAME`` holds the command as ``command``."""


class LazyGroup(click.Group):
    """A group that imports the module of a command when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name every command."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command; None where there is none of that name."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"tpu_image.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments name, or refuse the name with those that look like it."""
        from tpu_image.catalogue.choices import unknown

        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            raise click.UsageError(str(unknown("command", args[0], COMMANDS)), ctx)
        return super().resolve_command(ctx, args)


@click.command(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "tpu-image check /mnt/root --no-agent",
        "tpu-image apply /mnt/root --dry-run",
        "tpu-image explain kernel.iommu",
        'eval "$(_TPU_IMAGE_COMPLETE=bash_source tpu-image)"   # completion, also zsh_source and fish_source',
    ),
)
@click.version_option(__version__, prog_name="tpu-image", message="%(prog)s %(version)s")
@debug_option
@click.pass_context
def tpu_image(context: click.Context) -> int | None:
    """Turn an operating system image, or this machine, into one that Cloud TPU works on, and prove it.

    Exit status: 0 every requirement holds; 1 one does not, or nothing could be checked; 2 the command or
    its target is unusable; 130 interrupted.
    """
    if context.invoked_subcommand is not None:
        return None
    click.echo(context.get_help(), err=True)
    return UNUSABLE
