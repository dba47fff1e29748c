"""YAML with the place of every value: the one gateway to PyYAML, which is imported when a text is parsed.

A text is read as ``yaml.safe_load`` reads it (so as cloud-init does), within limits on size, depth and alias
expansion. A key that stands twice is legal to PyYAML (the last wins), so it is listed, not refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from tpu_image.formats import FormatError

if TYPE_CHECKING:
    import datetime

TEXT_LIMIT = 1024 * 1024
"""Characters of a text at most; Compute Engine's metadata takes 256 KiB a value."""

NODE_LIMIT = 20_000
"""Values of a text at most, an alias counted with everything that it stands for."""

DEPTH_LIMIT = 64
"""Collections inside one another at most."""

NUMBER_LIMIT = 1000
"""Characters of a number at most."""


class PyYamlMissingError(Exception):
    """PyYAML is not installed where this runs, so no YAML can be read."""

    def __init__(self) -> None:
        super().__init__("PyYAML is needed to read this")


class YamlError(FormatError):
    """A text is no YAML that a safe loader takes; ``column`` counts from 1 (0: the whole line)."""

    def __init__(self, reason: str, line: int = 0, column: int = 0) -> None:
        super().__init__(reason, line)
        self.column = column


class YamlLimitError(YamlError):
    """A text exceeds what is read here; other programs may take it."""


class Scalar(NamedTuple):
    """One value: ``value`` is what Python gets, ``text`` what stands there without its quotes."""

    value: str | int | float | bool | bytes | datetime.date | None
    text: str
    line: int
    column: int


class Sequence(NamedTuple):
    """A list of values."""

    items: tuple[Node, ...]
    line: int
    column: int


@dataclass(frozen=True)
class Mapping:
    """Keys and their values in order, merge keys (``<<``) resolved; the last of equal keys is kept."""

    entries: tuple[tuple[Scalar, Node], ...]
    line: int
    column: int

    def get(self, key: str) -> Node | None:
        """Give the value of a key; None where there is no such key."""
        return next((value for name, value in self.entries if name.value == key), None)

    def __iter__(self) -> Iterator[tuple[Scalar, Node]]:
        return iter(self.entries)


Node = Scalar | Sequence | Mapping
"""A value of a document; ``line`` and ``column`` count from 1, and are the anchor's where an alias stands."""


class Duplicate(NamedTuple):
    """A key that stands again in one mapping: the value at ``first_line`` is lost."""

    key: str
    line: int
    column: int
    first_line: int


class Document(NamedTuple):
    """A parsed text; ``root`` is None where it holds comments alone."""

    root: Node | None
    duplicates: tuple[Duplicate, ...]


def parse(text: str) -> Document:
    """Read a text that holds one YAML document.

    Raises:
        PyYamlMissingError: PyYAML is not installed.
        YamlLimitError: the text exceeds a limit.
        YamlError: the text is not YAML, or has a tag that a safe loader refuses.
    """
    try:
        from tpu_image.formats import yaml_nodes
    except ImportError:
        raise PyYamlMissingError from None
    if len(text) > TEXT_LIMIT:
        raise YamlLimitError(f"is longer than {TEXT_LIMIT} characters")
    return yaml_nodes.compose(text)
