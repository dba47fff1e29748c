"""``tpu-image explain``: what a requirement is, why, and what it changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from tpu_image import catalogue
from tpu_image.catalogue.sections import by_section
from tpu_image.cli import options
from tpu_image.output import emit
from tpu_image.report.json import dump, requirements_document

if TYPE_CHECKING:
    from tpu_image.catalogue.requirement import Requirement

_WIDTH = 78

DOCUMENT = "https://docs.cloud.google.com/tpu/docs/custom-os-image"
"""Google's page "Use a custom OS image"; sources name its sections by the titles of its Italian version."""


@click.command(
    "explain",
    short_help="Say what a requirement is, why, and what apply changes.",
    epilog=options.examples(
        "tpu-image explain                  every requirement, by section",
        "tpu-image explain kernel.iommu     one requirement",
        "tpu-image explain kernel           every one of a section",
        "tpu-image explain --format json",
    ),
)
@click.argument("requirement", required=False, shell_complete=options.complete_selection)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How it is written.",
)
@options.debug_option
def command(requirement: str | None, form: str) -> None:
    """Say what a requirement is, why a TPU machine needs it, where it comes from and what apply changes.

    REQUIREMENT is an id or a section; without it every requirement is listed.
    """
    chosen = catalogue.select([requirement] if requirement else [])
    if form == "json":
        emit(dump(requirements_document(chosen)))
    elif requirement:
        emit("\n".join([*(_details(one) for one in chosen), *_legend(chosen)]))
    else:
        emit("".join(_table(chosen)))


def _table(requirements: Sequence[Requirement]) -> Iterator[str]:
    width = max(len(one.id) for one in requirements)
    for name, members in by_section(requirements, lambda one: one.id).items():
        yield f"{name}\n"
        yield from (f"  {one.id:<{width}}  {one.title}\n" for one in members)
        yield "\n"
    yield "tpu-image explain ID tells more of one.\n"


def _legend(requirements: Sequence[Requirement]) -> list[str]:
    """Say what sources call the document, where one does."""
    if not any("document" in one.source for one in requirements):
        return []
    return [f"document: {DOCUMENT} (titles as in its Italian version, ?hl=it)\n"]


def _details(requirement: Requirement) -> str:
    facts = {
        "why": requirement.why,
        "source": requirement.source,
        "looks at": "a running machine" if requirement.live else "the files of an image",
        "changes": requirement.changes or "nothing: it only looks",
        "remedy": requirement.remedy,
    }
    lines = [f"  {name:<10}{_wrapped(text)}\n" for name, text in facts.items() if text]
    return f"{requirement.id}: {requirement.title}\n\n{''.join(lines)}"


def _wrapped(text: str) -> str:
    import textwrap

    lines = textwrap.wrap(" ".join(text.split()), _WIDTH, break_on_hyphens=False, break_long_words=False)
    return f"\n{' ' * 12}".join(lines)
