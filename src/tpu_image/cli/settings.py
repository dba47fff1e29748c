"""What holds for a whole run of the command line."""

from __future__ import annotations


class Settings:
    """Filled in while the command line is parsed."""

    def __init__(self) -> None:
        self.debug = False
        """Whether errors are shown with their traceback."""
