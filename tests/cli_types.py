"""Types of the fixtures of command line tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    status: int
    out: str
    err: str


Run = Callable[..., Done]
"""Runs a command line in this process."""
