"""How far long work is, on standard error: one line that changes on a terminal, lines in a pipe, or JSON."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import click

from tpu_image.progress import BYTES, SILENT, Progress
from tpu_image.report.printable import printable
from tpu_image.report.schema import closed_object

CHOICES = ("auto", "plain", "json", "none")

SCHEMA = "tpu-image/progress/1"
"""Name of the shape of an event."""

option = click.option(
    "--progress",
    "shown",
    type=click.Choice(CHOICES),
    default="auto",
    show_default=True,
    help="Progress on standard error; json: one event a line (tpu-image schema progress).",
)

TERMINAL_INTERVAL, LINE_INTERVAL, EVENT_INTERVAL = 0.2, 10.0, 0.5
"""Seconds between two showings of one stage."""

COLUMNS = 80
"""Of a terminal that does not tell."""


class State(NamedTuple):
    """A stage, how far it is, in what, and the ``seconds`` it takes so far.

    Where it has steps instead of a measure: which one, and the last ``line`` that came of it.
    """

    stage: str
    done: int = 0
    total: int = 0
    unit: str = BYTES
    seconds: float = 0.0
    step: str = ""
    line: str = ""

    @property
    def rate(self) -> float:
        """Units a second since the stage began; low in its first moment, rather than what no disk can do."""
        return self.done / max(self.seconds, TERMINAL_INTERVAL)

    def event(self) -> dict[str, Any]:
        """What JSON tells."""
        return {
            "schema": SCHEMA,
            "stage": self.stage,
            "step": self.step,
            "done": self.done,
            "total": self.total,
            "unit": self.unit,
            "rate": round(self.rate),
        }

    def __str__(self) -> str:
        if not self.done:
            step = f": {self.step}" if self.step else ""
            return f"{self.stage}{step}, {self.seconds:.0f} s"
        if self.unit != BYTES:
            of = f" of {self.total}" if self.total else ""
            return f"{self.stage}: {self.done}{of} {self.unit}, {self.seconds:.0f} s"
        of = f" of {self.total / 1e6:.0f}" if self.total else ""
        return f"{self.stage}: {self.done / 1e6:.0f}{of} MB, {self.rate / 1e6:.0f} MB/s, {self.seconds:.0f} s"


class Display(Progress):
    """Shows the latest state from a thread of its own, so that work that says nothing is not silent either.

    Args:
        show: shows a state; a new stage or step at once, then one ``interval`` after another.
        log: shows a line that stays.
        clear: takes away what was shown and does not stay.
    """

    def __init__(
        self,
        show: Callable[[State], None],
        log: Callable[[str], None],
        interval: float,
        clear: Callable[[], None] = lambda: None,
    ) -> None:
        self._show = show
        self._log = log
        self._interval = interval
        self._clear = clear
        self._lock = threading.Lock()
        self._state: State | None = None
        self._began = 0.0
        self._aside = False
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="progress", daemon=True)

    def at(self, stage: str, done: int = 0, total: int = 0, unit: str = BYTES) -> None:
        """Note a state; the last one of a stage is shown before the next."""
        self._note(State(stage, done, total, unit))

    def step(self, stage: str, step: str, line: str = "") -> None:
        """Note a step of a stage; what a step says may come from anywhere."""
        self._note(State(stage, step=printable(step), line=printable(line)))

    def _note(self, state: State) -> None:
        with self._lock:
            before = self._state
            if before is None or before.stage != state.stage:
                self._show_latest()
                self._began = time.monotonic()
            self._state = state
            if before is None or (before.stage, before.step) != (state.stage, state.step):
                self._show_latest()
        if before is None:
            self._thread.start()

    def log(self, line: str) -> None:
        """Show a line that stays."""
        with self._lock:
            self._log(printable(line))

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Show nothing while the block lasts."""
        with self._lock:
            self._clear()
            self._aside = True
        try:
            yield
        finally:
            with self._lock:
                self._aside = False

    def _run(self) -> None:
        while not self._end.wait(self._interval):
            with self._lock:
                self._show_latest()

    def _show_latest(self) -> None:
        if self._state is not None and not self._aside:
            self._show(self._state._replace(seconds=time.monotonic() - self._began))

    def close(self) -> None:
        """Show the last state and no more."""
        self._end.set()
        if self._state is not None:
            self._thread.join()
            self._show_latest()
        self._clear()


@contextlib.contextmanager
def display(choice: str = "auto", *, quiet: bool = False) -> Iterator[Progress]:
    """Give what shows progress as it was asked for (one of :data:`CHOICES`), until the block ends."""
    if choice == "none" or quiet or sys.stderr is None:
        yield SILENT
        return
    terminal = choice == "auto" and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    it = _terminal() if terminal else _events() if choice == "json" else _lines()
    try:
        yield it
    finally:
        it.close()


def _terminal() -> Display:
    def show(state: State) -> None:
        _echo(f"\r{f'{state}  {state.line}'.rstrip()[: _columns() - 1]}\033[K", nl=False)

    def log(line: str) -> None:
        _echo(f"\r\033[K{line}")

    return Display(show, log, TERMINAL_INTERVAL, lambda: _echo("\r\033[K", nl=False))


def _columns() -> int:
    """How wide the terminal is: a longer line would go on in the next, where nothing takes it away."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or COLUMNS
    except (OSError, ValueError):
        return COLUMNS


def _lines() -> Display:
    told = ""

    def show(state: State) -> None:
        nonlocal told
        # What is over at once needs no line, but for a step: those are few, and tell a story.
        if state.step not in ("", told) or state.seconds >= interval / 2:
            told = state.step
            _echo(str(state))

    interval = 1.0 if sys.stderr.isatty() else LINE_INTERVAL
    return Display(show, _echo, interval)


def _events() -> Display:
    def log(line: str) -> None:
        _echo(json.dumps({"schema": SCHEMA, "log": line}))

    return Display(lambda state: _echo(json.dumps(state.event())), log, EVENT_INTERVAL)


def _echo(line: str, *, nl: bool = True) -> None:
    with contextlib.suppress(OSError):  # a reader that left must not end the work
        click.echo(line, err=True, nl=nl)


def progress_schema() -> dict[str, Any]:
    """Give the schema of an event of ``--progress json``."""
    count = {"type": "integer", "minimum": 0}
    named = {"schema": {"const": SCHEMA}}
    state = {
        **named,
        "stage": {"type": "string", "description": "What is being done, in a word."},
        "step": {
            "type": "string",
            "description": "The step of a stage that is not counted but has steps: a boot's.",
        },
        "done": count,
        "total": count | {"description": "0 where it is not known."},
        "unit": {"type": "string", "description": "What done and total count: bytes, packages."},
        "rate": count | {"description": "Units a second since the stage began."},
    }
    log = {**named, "log": {"type": "string", "description": "A line for people."}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{SCHEMA.replace('/', ':')}",
        "title": "Event of tpu-image --progress json",
        "description": "One a line on standard error. Lines that start with another character than { are messages.",
        "oneOf": [closed_object(state), closed_object(log)],
    }
