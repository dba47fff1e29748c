"""``tpu-image schema``: the JSON schemas of what it prints and reads."""

from __future__ import annotations

from pathlib import Path

import click

from tpu_image.cli import options
from tpu_image.output import emit
from tpu_image.report.json import dump


@click.command(
    "schema",
    short_help="Print the JSON schema of what is printed or read.",
    epilog=options.examples(
        "tpu-image schema boot                       of boot --format json",
        "tpu-image schema build                      of the manifest that build writes",
        "tpu-image schema check                      of check --format json",
        "tpu-image schema progress                   of a line of build --progress json",
        "tpu-image schema spec -o spec.schema.json   of the specification file, for an editor",
    ),
)
@click.argument(
    "document", type=click.Choice(["boot", "build", "check", "progress", "spec"]), metavar="DOCUMENT"
)
@options.output_option
@options.debug_option
def command(document: str, output: Path | None) -> None:
    """Print the JSON schema (draft 2020-12) of DOCUMENT: boot, build, check, progress or spec."""
    if document == "check":
        from tpu_image.report.schema import check_schema

        schema = check_schema()
    elif document == "boot":
        from tpu_image.report.boot_schema import boot_schema

        schema = boot_schema()
    elif document == "build":
        from tpu_image.manifest import build_schema

        schema = build_schema()
    elif document == "progress":
        from tpu_image.cli.progress import progress_schema

        schema = progress_schema()
    else:
        from tpu_image.spec import json_schema

        schema = json_schema()
    emit(dump(schema), output)
