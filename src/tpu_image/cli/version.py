"""``tpu-image version``."""

from __future__ import annotations

import click

from tpu_image import __version__
from tpu_image.cli import options
from tpu_image.output import emit


@click.command("version", epilog=options.examples("tpu-image version"))
@options.debug_option
def command() -> None:
    """Print the version."""
    emit(f"tpu-image {__version__}\n")
