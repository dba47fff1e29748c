"""A report as text, in the format that was asked for."""

from __future__ import annotations

import click

from tpu_image.report.model import Report

FORMATS = ("text", "json", "junit", "sarif", "html")

format_option = click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="text",
    show_default=True,
    help="How the result is written.",
)


def render(report: Report, form: str, *, color: bool = False, quiet: bool = False) -> str:
    """Write a report in one of :data:`FORMATS`, with only its module loaded."""
    if form == "json":
        from tpu_image.report import json

        return json.render(report)
    if form == "junit":
        from tpu_image.report import junit

        return junit.render(report)
    if form == "sarif":
        from tpu_image.report import sarif

        return sarif.render(report)
    if form == "html":
        from tpu_image.report import html

        return html.render(report)
    from tpu_image.report import text

    return text.render(report, color=color, quiet=quiet)
