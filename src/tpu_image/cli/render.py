"""``tpu-image render``: the changes in the language of another tool."""

from __future__ import annotations

from pathlib import Path

import click

from tpu_image.catalogue import readings
from tpu_image.catalogue.requirement import Profile
from tpu_image.cli import options
from tpu_image.cli.failures import UnusableError, inside, report
from tpu_image.inspection import opened
from tpu_image.output import emit
from tpu_image.render.steps import RenderError, Steps, steps_of
from tpu_image.render.typical import typical_tree
from tpu_image.trees.overlay import Overlay

FORMATS = ("shell", "cloud-config")


@click.command(
    "render",
    epilog=options.examples(
        "tpu-image render shell --tpu v6e > prepare.sh",
        "tpu-image render shell --root /mnt/root -o prepare.sh",
        "tpu-image render cloud-config --no-agent -o user-data.yaml",
    ),
)
@click.argument("form", metavar="FORMAT", type=click.Choice(FORMATS))
@click.option(
    "--root",
    metavar="DIR",
    help="The root that it is for, whose files are then known; without it, a Debian or Ubuntu.",
)
@options.profile_options
@options.only_option
@options.output_option
@options.debug_option
def command(
    form: str, root: str | None, profile: Profile, only: tuple[str, ...], output: Path | None
) -> None:
    """Write what apply would change in the language of another tool.

    FORMAT is shell, a script for a machine or for a root that is entered by chroot, or cloud-config, the
    user-data of a machine that cloud-init sets up. Nothing is changed here.
    Agents are not in it: build and apply install them.
    """
    if root is None:
        steps = _steps(readings.plan(typical_tree(), profile, only=only), profile)
    else:
        with inside(root), opened(root) as target:
            steps = _steps(readings.plan(target.tree, profile, only=only), profile)
    if form == "shell":
        from tpu_image.render import shell

        emit(shell.render(steps), output)
    else:
        from tpu_image.render import cloud_config

        text = cloud_config.render(steps)
        emit(text, output)
        size, limit = len(text.encode("utf-8")), cloud_config.USER_DATA_LIMIT
        if size > limit:
            report(
                f"{size} bytes are more than the {limit} that Compute Engine takes as user-data: use shell"
            )


def _steps(overlay: Overlay, profile: Profile) -> Steps:
    try:
        return steps_of(overlay, profile)
    except RenderError as error:
        raise UnusableError(str(error)) from error
