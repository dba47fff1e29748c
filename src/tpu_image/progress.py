"""How long work tells how far it is: what works calls this, and the command line shows it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

BYTES = "bytes"
"""What most work is counted in."""


class Progress:
    """Is told how far long work is, from any thread, as often as one likes; this one keeps it to itself."""

    def at(self, stage: str, done: int = 0, total: int = 0, unit: str = BYTES) -> None:
        """Note what is being done, in a word or two, and how much of how much is; 0 of 0 where nobody knows."""

    def step(self, stage: str, step: str, line: str = "") -> None:
        """Note which step of a stage without a measure is being done, and the last line that came of it."""

    def log(self, line: str) -> None:
        """Show a line that is to stay."""

    def aside(self) -> AbstractContextManager[None]:
        """Show nothing while the block lasts: the terminal is somebody else's."""
        return nullcontext()


SILENT = Progress()
"""Nobody looks."""
