"""Putting rules of ours into a tree without losing a line that its owner wrote."""

from __future__ import annotations

from tpu_image.formats.udev_rules import Rule, parse
from tpu_image.trees.base import Kind, NotFoundError
from tpu_image.trees.overlay import Overlay


def own_file(path: str) -> str:
    """Give the file beside the document's that takes our rules when that one holds others."""
    return path.replace("/99-tpu", "/99-tpu-image", 1)


def put_rules(overlay: Overlay, path: str, content: str, replaceable: str) -> None:
    """Write rules to the document's file, or beside it when that holds lines of its owner.

    A file is the owner's unless each of its rules does what a rule of ``content`` or of ``replaceable`` does.
    """
    entry, target = overlay.lstat(path), overlay.stat(path)
    if entry is not None and entry.kind is Kind.SYMLINK and (target is None or target.kind is not Kind.FILE):
        overlay.remove(path)  # a mask: a link to /dev/null, or to nothing
    elif target is not None and not _is_replaceable(overlay, path, content + replaceable):
        path = own_file(path)
    put(overlay, path, content)


def put(overlay: Overlay, path: str, content: str, mode: int | None = None) -> None:
    """Write a file where its content or mode differs."""
    entry = overlay.stat(path)
    try:
        same = overlay.read_text(path) == content
    except NotFoundError:
        same = False
    if not same or (mode is not None and entry is not None and entry.mode != mode):
        overlay.write(path, content, mode=mode)


def _is_replaceable(overlay: Overlay, path: str, known: str) -> bool:
    signatures = {_signature(rule) for rule in parse(known).rules}
    return all(_signature(rule) in signatures for rule in parse(overlay.read_text(path)).rules)


def _signature(rule: Rule) -> object:
    """Give what a rule compares and what it assigns, whatever the mode and group: a profile changes those."""
    if rule.error:
        return rule.text
    conditions = frozenset((t.name, t.operator, t.value) for t in rule.tokens if t.condition)
    assigned = frozenset(
        (t.key, "" if t.key in ("MODE", "GROUP") else t.value) for t in rule.tokens if not t.condition
    )
    return conditions, assigned - {("GROUP", "")}
