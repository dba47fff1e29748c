"""The sections of the catalogue: what stands before the dot of a requirement's id."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")


def section(requirement: str) -> str:
    """Give the section of a requirement's id: ``kernel`` of ``kernel.thp``."""
    return requirement.partition(".")[0]


def by_section(items: Iterable[Item], requirement: Callable[[Item], str]) -> dict[str, list[Item]]:
    """Put items together by the section of their requirement, in the order in which sections first appear."""
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(section(requirement(item)), []).append(item)
    return found
