"""The users and groups of a tree, by ``/etc/passwd`` and ``/etc/group`` (passwd(5), group(5))."""

from __future__ import annotations

from tpu_image.trees.base import Tree

PASSWD = "/etc/passwd"
GROUP = "/etc/group"


def user_id(tree: Tree, name: str) -> int | None:
    """Give the id of a user; None where there is none of that name."""
    return _id(tree.derive(users), name)


def group_id(tree: Tree, name: str) -> int | None:
    """Give the id of a group; None where there is none of that name."""
    return _id(tree.derive(groups), name)


def users(tree: Tree) -> list[list[str]]:
    """Give the fields of every line of ``/etc/passwd``; ``tree.derive(users)`` reads it once for all."""
    return _lines(tree, PASSWD)


def groups(tree: Tree) -> list[list[str]]:
    """Give the fields of every line of ``/etc/group``; ``tree.derive(groups)`` reads it once for all."""
    return _lines(tree, GROUP)


def names(entries: list[list[str]]) -> frozenset[str]:
    """Give the names of users or groups."""
    return frozenset(fields[0] for fields in entries)


def _lines(tree: Tree, path: str) -> list[list[str]]:
    text = tree.read_text_if_present(path) or ""
    return [line.split(":") for line in text.splitlines() if ":" in line]


def _id(entries: list[list[str]], name: str) -> int | None:
    numbers = (fields[2] for fields in entries if fields[0] == name and len(fields) > 2)
    return next((int(number) for number in numbers if number.isdecimal()), None)
