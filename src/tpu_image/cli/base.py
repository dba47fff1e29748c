"""What a base may be named by: a path, a URL, or the reference of one that is made here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tpu_image.bases.releases import REFERENCES
from tpu_image.cli import options
from tpu_image.progress import Progress

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def base_option(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse what is neither a file, a URL nor a reference."""
    from tpu_image.downloads.download import is_url

    if value is None or value in REFERENCES or is_url(value):
        return value
    if Path(value).is_dir():
        raise click.BadParameter(
            f"{value!r} is a directory, and a disk image is wanted; to change it where it is: tpu-image apply.",
            context,
            parameter,
        )
    if Path(value).exists():
        return value
    raise click.BadParameter(
        f"File {value!r} does not exist; BASE is a file, a URL, or one of {', '.join(REFERENCES)}.",
        context,
        parameter,
    )


def complete_base(
    context: click.Context, parameter: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete a reference, or else a path."""
    from click.shell_completion import CompletionItem

    references = [CompletionItem(name) for name in REFERENCES if incomplete and name.startswith(incomplete)]
    return references or options.complete_file(context, parameter, incomplete)


def open_base(value: str, progress: Progress, sha256: str = "") -> Path:
    """Give the file of a base, fetching or making it where it has to be.

    Args:
        value: a path, URL or reference.
        progress: is told how far that is.
        sha256: of what is fetched, in hexadecimal; empty where the URL's own fragment or nothing says it.

    Raises:
        BaseError, DownloadError, CacheError: it cannot be had.
    """
    from tpu_image.downloads.download import is_url, split_sha256

    if value in REFERENCES:
        from tpu_image.bases.make import resolve

        return resolve(
            value,
            lambda stage, done, total: progress.at(f"{value}: {stage}", done, total, "packages"),
            progress.log,
        )
    if is_url(value):
        url, of_url = split_sha256(value)
        return fetch(url, sha256 or of_url, progress)
    return Path(value)


def fetch(url: str, sha256: str, progress: Progress) -> Path:
    """Give the file of a URL, from the cache or fetched into it.

    Raises:
        DownloadError, CacheError: it cannot be had.
    """
    from tpu_image.downloads.download import download

    return download(
        url,
        sha256=sha256,
        report=lambda done, total, _rate: progress.at("fetching", done, total),
        note=progress.log,
    )
