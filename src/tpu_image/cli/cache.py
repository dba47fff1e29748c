"""``tpu-image cache``: what downloads and bases are kept, and how to be rid of them."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence

import click

from tpu_image.cli import NOT_OK, OK, options
from tpu_image.cli.failures import report as tell
from tpu_image.downloads import cache
from tpu_image.downloads.cache import Entry
from tpu_image.output import emit
from tpu_image.report.printable import printable

SCHEMA = "tpu-image/cache/1"

_AGE = re.compile(r"([0-9]{1,5})([hdw])")
_SECONDS = {"h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}


def _age(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Read an age such as 30d, in seconds."""
    if value is None:
        return None
    match = _AGE.fullmatch(value)
    if match is None:
        raise click.BadParameter(
            f"{value!r} is no age: give hours, days or weeks, as 12h, 30d, 4w", context, parameter
        )
    return int(match[1]) * _SECONDS[match[2]]


format_option = click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How the result is written.",
)


@click.group(
    "cache",
    invoke_without_command=True,
    epilog=options.examples(
        "tpu-image cache                          what is kept, and how large it is",
        "tpu-image cache clean --older-than 30d   remove what was not used for 30 days",
        "tpu-image cache clean --all              remove everything that is not in use",
        "TPU_IMAGE_CACHE_LIMIT=5G tpu-image cache clean   keep 5 GiB at most (20G by default)",
    ),
)
@format_option
@options.debug_option
@click.pass_context
def command(context: click.Context, form: str) -> int | None:
    """Look at the cache of downloads and bases, or clean it.

    It is $XDG_CACHE_HOME/tpu-image, or ~/.cache/tpu-image.
    """
    return None if context.invoked_subcommand else _list(form)


@command.command("list")
@format_option
@options.debug_option
def list_command(form: str) -> int:
    """List what is kept (the default), the longest unused first."""
    return _list(form)


def _list(form: str) -> int:
    found = cache.entries()
    emit(as_json(found) if form == "json" else as_text(found, time.time()))
    return OK


@command.command("clean", short_help="Remove what is over the limit, old or unfinished, or everything.")
@click.option("--all", "everything", is_flag=True, help="Remove everything that is not in use.")
@click.option(
    "--older-than", metavar="AGE", callback=_age, help="Remove what was not used for so long: 12h, 30d, 4w."
)
@format_option
@options.debug_option
def clean_command(everything: bool, older_than: int | None, form: str) -> int:
    """Remove entries of the cache; without an option, what is over its limit, and what is unfinished.

    What is in use stays, and is named.
    """
    from tpu_image.bases.make import clean

    if everything and older_than is not None:
        raise click.UsageError("--all and --older-than contradict each other")
    before = cache.entries()
    clean()
    kept = _clean(everything, older_than)
    left = {entry.path for entry in cache.entries()}
    gone = [entry for entry in before if entry.path not in left]
    for entry in kept:
        tell(f"{entry.path}: is in use, or not yours to remove; it stays")
    emit(as_json(gone) if form == "json" else f"removed {len(gone)}, {_size(sum(e.size for e in gone))}\n")
    return NOT_OK if kept else OK


def _clean(everything: bool, older_than: int | None) -> Sequence[Entry]:
    """Remove what the options say; gives what should have gone and stays."""
    if everything or older_than is not None:
        limit = time.time() - (older_than or 0)
        old = (entry for entry in cache.entries() if entry.used < limit and entry.kind != "other")
        wanted = cache.entries() if everything else list(old)
    else:
        cache.shrink()
        wanted = [entry for entry in cache.entries() if entry.kind == "unfinished"]
    return [entry for entry in wanted if not cache.remove(entry)]


def as_json(entries: Sequence[Entry]) -> str:
    """Write entries down for programs: sizes in bytes, times in seconds since 1970."""
    listed = [
        {
            "path": str(entry.path),
            "kind": entry.kind,
            "origin": entry.origin,
            "size": entry.size,
            "used": int(entry.used),
        }
        for entry in entries
    ]
    document = {
        "schema": SCHEMA,
        "folder": str(cache.folder()),
        "limit": cache.size_limit(),
        "entries": listed,
    }
    return json.dumps(document, indent=1) + "\n"


def as_text(entries: Sequence[Entry], now: float) -> str:
    """Write entries down for a person."""
    lines = [
        f"{_size(entry.size):>9}  {entry.kind:<10}  {_ago(now - entry.used):>9}  "
        f"{printable(entry.origin or entry.path.name)}\n"
        for entry in entries
    ]
    total = _size(sum(entry.size for entry in entries))
    return (
        "".join(lines)
        + f"{total:>9}  in {printable(str(cache.folder()))}, limit {_size(cache.size_limit())}\n"
    )


def _size(count: int) -> str:
    return f"{count / (1 << 20):.1f} MiB" if count < 1 << 30 else f"{count / (1 << 30):.1f} GiB"


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit} ago"
    return "just now"
