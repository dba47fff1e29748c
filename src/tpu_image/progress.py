"""How long work tells how far it is: what works calls this, and the command line shows it."""

from __future__ import annotations


class Progress:
    """Is told how far long work is, from any thread, as often as one likes; this one keeps it to itself."""

    def at(self, stage: str, done: int = 0, total: int = 0) -> None:
        """Note what is being done, in one word, and how many bytes of how many are; 0 of 0 where nobody knows."""

    def log(self, line: str) -> None:
        """Show a line that is to stay."""


SILENT = Progress()
"""Nobody looks."""
