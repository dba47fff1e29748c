"""What the metadata server holds: a tree that may change while guests read it and wait for changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tpu_image.lab.metadata import nodes
from tpu_image.lab.metadata.machine import Machine
from tpu_image.lab.metadata.nodes import Named, Node

ENABLE_GUEST_ATTRIBUTES = "enable-guest-attributes"
"""The attribute, of the instance or the project, that must say TRUE before a guest may write."""

GUEST_ATTRIBUTES_LIMIT = 1000
GUEST_ATTRIBUTES_SIZE = 512 * 1024
"""Keys and characters that a guest may write here, so that it cannot fill the memory: every answer is a copy."""

_TOP = ("computeMetadata", "v1")
_ATTRIBUTES = (*_TOP, "instance", "attributes")
_GUEST_ATTRIBUTES = (*_TOP, "instance", "guest-attributes")
_NONE: Mapping[str, str | None] = MappingProxyType({})


class State:
    """The tree of one machine. Every method may be called from any thread."""

    def __init__(self, machine: Machine) -> None:
        self._changed = threading.Condition()
        self._closed = False
        self._root: dict[str, Node] = {"computeMetadata": {"v1": machine.tree()}}

    def find(self, names: Sequence[str], changes: Mapping[str, str | None] = _NONE) -> Node | None:
        """Follow names from the server's root; what is found is not changed afterwards, only replaced.

        Args:
            names: the path.
            changes: attributes of the instance that are to appear as something else, or not at all.
        """
        with self._changed:
            root = self._root
        for key, value in changes.items():
            root = _with(root, [*_ATTRIBUTES, key], value)
        return nodes.find(root, names)

    def wait(self, names: Sequence[str], last_etag: str, seconds: float | None) -> bool:
        """Wait until a node differs from what its reader has; False where the server closes meanwhile.

        Args:
            names: where the node is.
            last_etag: of what the reader has; empty for what is there now.
            seconds: the longest wait; None for no end.
        """
        end = None if seconds is None else time.monotonic() + seconds
        with self._changed:
            known = last_etag or self._etag(names)
            while not self._closed and self._etag(names) == known:
                remaining = None if end is None else end - time.monotonic()
                if remaining is not None and remaining <= 0:
                    break
                self._changed.wait(remaining)
            return not self._closed

    def set_attribute(self, key: str, value: str | None) -> None:
        """Set an attribute of the instance, or take it away, as somebody outside the machine would."""
        self._replace((*_ATTRIBUTES, key), value)

    def guest_attributes_enabled(self) -> bool:
        """Whether the guest may use guest attributes."""
        for owner in ("instance", "project"):
            value = self.find((*_TOP, owner, "attributes", ENABLE_GUEST_ATTRIBUTES))
            if value is not None:
                return str(value).upper() == "TRUE"
        return False

    def set_guest_attribute(self, namespace: str, key: str, value: str | None) -> bool:
        """Set what a guest says, or take it away; False where there is no room for it."""
        with self._changed:
            others = self.guest_attributes()
            others.pop(f"{namespace}/{key}", None)
            size = sum(map(len, others.values())) + len(value or "")
            if value is not None and (len(others) >= GUEST_ATTRIBUTES_LIMIT or size > GUEST_ATTRIBUTES_SIZE):
                return False
            self._replace((*_GUEST_ATTRIBUTES, namespace, key), value)
            return True

    def guest_attributes(self) -> dict[str, str]:
        """Give what the guest has written: ``NAMESPACE/KEY`` and value."""
        groups = nodes.entries(self.find(_GUEST_ATTRIBUTES) or {})
        return {
            f"{namespace}/{key}": str(value)
            for namespace, group in groups.items()
            for key, value in nodes.entries(group).items()
        }

    def close(self) -> None:
        """Let everyone go who waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _etag(self, names: Sequence[str]) -> str:
        node = nodes.find(self._root, names)
        return "" if node is None else nodes.etag(node)

    def _replace(self, names: Sequence[str], value: str | None) -> None:
        with self._changed:
            self._root = _with(self._root, names, value)
            self._changed.notify_all()


def _with(node: dict[str, Node], names: Sequence[str], value: str | None) -> dict[str, Node]:
    """Copy a directory with one value set or, where it is None, taken away; directories on the way are made."""
    name, *below = names
    copy = type(node)(node)
    if below:
        inner = node.get(name)
        copy[name] = _with(inner if isinstance(inner, dict) else Named(), below, value)
    elif value is None:
        copy.pop(name, None)
    else:
        copy[name] = value
    return copy
