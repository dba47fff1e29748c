"""What a base may be named by: a path, a URL, or the reference of one that is made here."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from tpu_image.bases.releases import REFERENCES
from tpu_image.cli.failures import report as tell
from tpu_image.report.printable import printable

Show = Callable[[str], None]


def base_option(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Refuse what is neither a file, a URL nor a reference."""
    from tpu_image.downloads.download import is_url

    if value in REFERENCES or is_url(value):
        return value
    if Path(value).is_dir():
        raise click.BadParameter(f"File {value!r} is a directory.", context, parameter)
    if Path(value).exists():
        return value
    raise click.BadParameter(
        f"File {value!r} does not exist; BASE is a file, a URL, or one of {', '.join(REFERENCES)}.",
        context,
        parameter,
    )


def open_base(value: str, *, quiet: bool) -> Path:
    """Give the file of a base, fetching or making it where it has to be."""
    from tpu_image.downloads.download import download, is_url, split_sha256

    if value in REFERENCES:
        from tpu_image.bases.make import resolve

        with _line(quiet) as show:
            return resolve(value, lambda *state: show(f"{value}: {stage_line(*state)}"), tell)
    if is_url(value):
        url, sha256 = split_sha256(value)
        with _line(quiet) as show:
            return download(url, sha256=sha256, report=lambda *state: show(transfer_line(*state)), note=tell)
    return Path(value)


def stage_line(stage: str, done: int, total: int) -> str:
    """Say how far the making of a base is."""
    if total:
        return f"{stage}, {done} of {total}"
    return f"{stage}, {done}" if done else stage


def transfer_line(done: int, total: int, rate: float) -> str:
    """Say how far a download is: bytes, and bytes a second."""
    whole = f" of {total >> 20}" if total else ""
    return f"fetching, {done >> 20}{whole} MiB, {rate / 1e6:.1f} MB/s"


@contextlib.contextmanager
def _line(quiet: bool) -> Iterator[Show]:
    """Give a function that shows how far something is."""
    if quiet or sys.stderr is None:
        yield _nothing
    elif sys.stderr.isatty():
        with _changing_line() as show:
            yield show
    else:
        yield _plain_lines()


def _nothing(text: str) -> None:
    del text


@contextlib.contextmanager
def _changing_line() -> Iterator[Show]:
    """One line of a terminal; its seconds go on where nothing else does."""
    began = time.monotonic()
    text = ""
    stop = threading.Event()

    def show(new: str) -> None:
        nonlocal text
        text = new

    def draw() -> None:
        while not stop.wait(0.2):
            if text:
                click.echo(f"\r{printable(text)}, {time.monotonic() - began:.0f} s\033[K", err=True, nl=False)

    drawing = threading.Thread(target=draw, daemon=True)
    drawing.start()
    try:
        yield show
    finally:
        stop.set()
        drawing.join()
        click.echo("\r\033[K", err=True, nl=False)


def _plain_lines() -> Show:
    """A line for each stage, and then every ten seconds."""
    began = time.monotonic()
    last, last_stage = 0.0, ""

    def show(text: str) -> None:
        nonlocal last, last_stage
        now = time.monotonic()
        stage = text.partition(",")[0]
        if stage != last_stage or now - last >= 10:
            last, last_stage = now, stage
            click.echo(f"{printable(text)}, {now - began:.0f} s", err=True)

    return show
