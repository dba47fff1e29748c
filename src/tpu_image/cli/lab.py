"""``tpu-image lab``: the QEMU that ``tpu-image boot`` uses."""

from __future__ import annotations

import sys

import click

from tpu_image.cli import OK, UNUSABLE, options
from tpu_image.cli.failures import report as tell
from tpu_image.output import emit


@click.group("lab", epilog=options.examples("tpu-image lab status", "tpu-image lab setup"))
@options.debug_option
def command() -> None:
    """Set up what tpu-image boot needs: a QEMU that can emulate TPUs."""


@command.command("setup", short_help="Unpack a QEMU that is new enough into the cache folder.")
@click.option("--verbose", is_flag=True, help="Show what mmdebstrap says.")
@options.debug_option
def setup(verbose: bool) -> int:
    """Unpack a QEMU that is new enough into the cache folder; takes about a minute, and neither root nor a mount."""
    from tpu_image.lab import qemu
    from tpu_image.lab import setup as lab_setup

    if not qemu.private_root().is_dir():
        tell(f"unpacking QEMU of Debian {lab_setup.BACKPORTS} into {qemu.private_root()}, about a minute")
    found = lab_setup.setup(sys.stderr.fileno() if verbose else None)
    emit(f"QEMU {found.version}: {found.root}\n")
    return OK


@command.command("status", short_help="Say which QEMU is used, and with which accelerator.")
@options.debug_option
def status() -> int:
    """Say which QEMU tpu-image boot would use, and with which accelerator."""
    from tpu_image.lab import accelerator, qemu
    from tpu_image.lab.errors import LabError

    try:
        found = qemu.find()
    except LabError as error:
        tell(str(error))
        return UNUSABLE
    chosen = accelerator.choose(found)
    where = "on PATH" if str(found.root) == "/" else str(found.root)
    emit(f"QEMU {found.version}: {where}\naccelerator: {chosen.name} ({chosen.reason})\n")
    return OK
