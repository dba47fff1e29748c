"""What holds for a whole run of the command line."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Settings:
    """Filled in while the command line is parsed."""

    debug: bool = False
    """Whether errors are shown with their traceback."""
