"""Metadata as a tree of directories and values, and how the server writes it: text, JSON, recursively or not."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Union


class Lines(NamedTuple):
    """A value of several items: one a line in text, an array in JSON. ``json_first`` where JSON is its usual form."""

    items: tuple[str, ...]
    json_first: bool = False


class Secret(NamedTuple):
    """A value that stands in the listing of its directory and in no recursive answer, as the tokens do."""

    value: Node
    json_first: bool = False


class Named(dict[str, "Node"]):
    """A directory whose entries somebody has named: JSON keeps the names as they are."""


Node = Union[str, int, Lines, Secret, dict[str, "Node"], list["Node"]]  # noqa: UP007 - it refers to itself
"""A value; a directory; or a directory whose entries are numbered from 0, an array in JSON."""


def is_directory(node: Node) -> bool:
    """Whether the node has entries."""
    return isinstance(node, (dict, list))


def entries(node: Node) -> dict[str, Node]:
    """Give the entries of a directory; a value has none."""
    if isinstance(node, list):
        return {str(number): entry for number, entry in enumerate(node)}
    return node if isinstance(node, dict) else {}


def find(root: Node, names: Sequence[str]) -> Node | None:
    """Follow names from the root; None where there is no such node."""
    node: Node | None = root
    for name in names:
        node = None if node is None else entries(node).get(name)
    return node


def prefers_json(node: Node) -> bool:
    """Whether a value is written as JSON where neither form is asked for."""
    return isinstance(node, (Lines, Secret)) and node.json_first


def as_text(node: Node) -> str:
    """Write a value, or the listing of a directory: an entry a line, directories with a final slash."""
    if isinstance(node, Secret):
        return as_text(node.value)
    if isinstance(node, Lines):
        return "".join(f"{item}\n" for item in node.items)
    if isinstance(node, (dict, list)):
        return "".join(
            f"{name}{'/' if is_directory(entry) else ''}\n" for name, entry in entries(node).items()
        )
    return str(node)


def as_recursive_text(node: Node) -> str:
    """Write all values below a directory: its path and the value on a line."""
    return "".join(f"{path} {value}\n" for path, value in _values(node, ""))


def as_json(node: Node) -> str:
    """Write a node and all below it as JSON, names in camel case."""
    return json.dumps(_plain(node.value if isinstance(node, Secret) else node), separators=(",", ":"))


def etag(node: Node) -> str:
    """Give what changes with the content of a node: sixteen hexadecimal digits, as the real server's."""
    return hashlib.sha256(as_json(node).encode()).hexdigest()[:16]


def _values(node: Node, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, Secret):
        return
    if isinstance(node, Lines):
        yield from ((path, item) for item in node.items)
    elif isinstance(node, (dict, list)):
        for name, entry in entries(node).items():
            yield from _values(entry, f"{path}/{name}".lstrip("/"))
    else:
        yield path, str(node)


def _plain(node: Node) -> object:
    if isinstance(node, Lines):
        return list(node.items)
    if isinstance(node, list):
        return [_plain(entry) for entry in node]
    if isinstance(node, dict):
        keep = isinstance(node, Named)
        shown = {name: entry for name, entry in node.items() if not isinstance(entry, Secret)}
        return {name if keep else _camel(name): _plain(entry) for name, entry in shown.items()}
    return node


def _camel(name: str) -> str:
    first, *others = name.split("-")
    return first + "".join(part[:1].upper() + part[1:] for part in others)
