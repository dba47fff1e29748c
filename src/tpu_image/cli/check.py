"""``tpu-image check``: does this meet every requirement?"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from tpu_image.catalogue.requirement import Profile
from tpu_image.cli import NOT_OK, OK, options, reports
from tpu_image.inspection import DIRECTORY, inspect, opened
from tpu_image.output import emit, require_place, wants_color

if TYPE_CHECKING:
    from pathlib import Path

WANTED = f"a disk image, {DIRECTORY}"


@click.command(
    "check",
    epilog=options.examples(
        "tpu-image check                             this machine",
        "tpu-image check tpu.tar.gz                  a disk image",
        "tpu-image check /mnt/root --tpu v6e         the root of one, for v6e alone",
        "tpu-image check --only kernel --only vfio   two sections",
        "tpu-image check . --live recording          with a recorded /proc, /sys and /dev",
        'tpu-image check --waive kernel.idle="power budget"',
        "tpu-image check . --format sarif -o tpu-image.sarif",
    ),
)
@click.argument("target", default="/", metavar="[TARGET]", shell_complete=options.complete_file)
@click.option(
    "--live",
    metavar="DIR",
    shell_complete=options.complete_file,
    help="Take the running machine's /proc, /sys, /dev and /run from below DIR.",
)
@options.profile_options
@options.only_option
@reports.format_option
@options.output_option
@options.quiet_option
@options.color_option
@options.debug_option
def command(
    target: str,
    live: str | None,
    profile: Profile,
    only: Sequence[str],
    form: str,
    output: Path | None,
    quiet: bool,
    color: str,
) -> int:
    """Say whether TARGET meets every requirement of a TPU image.

    TARGET is a disk image (qcow2, raw, Compute Engine's .tar.gz, VMDK, VHD or VDI), a directory that holds the
    root of one, or / (the default): this machine, whose devices, kernel and limits are then looked at too.
    Nothing is changed.
    """
    require_place(output, keep=target)
    with shown(quiet=quiet or not os.path.isfile(target)), opened(target, live, WANTED) as it:
        report = inspect(it, profile, only)
    colored = wants_color(color) and output is None
    emit(reports.render(report, form, color=colored, quiet=quiet), output)
    return OK if report.ok else NOT_OK


@contextlib.contextmanager
def shown(*, quiet: bool) -> Iterator[None]:
    """Show on a terminal that the block works: an archive is unpacked on the way to what is looked at."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    from tpu_image.cli.progress import display

    with display() as progress:
        progress.at("checking")
        yield
