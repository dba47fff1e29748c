"""A bounded memory of what was decoded last."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedCache(Generic[Key, Value]):
    """Least recently used values, at most ``capacity`` in all by the ``cost`` of each; safe between threads.

    Two threads that miss the same key at once both compute it: decoding twice is cheaper than waiting.
    """

    def __init__(self, capacity: int, cost: Callable[[Value], int]) -> None:
        self._capacity = capacity
        self._cost = cost
        self._held = 0
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key) -> Value | None:
        """Give the value kept under the key, which becomes the most recent; None where none is kept."""
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def put(self, key: Key, value: Value) -> None:
        """Keep a value, letting go of the least recent ones until all fit; one too large is not kept."""
        cost = self._cost(value)
        if cost > self._capacity:
            return
        with self._lock:
            previous = self._values.pop(key, None)
            if previous is not None:
                self._held -= self._cost(previous)
            self._values[key] = value
            self._held += cost
            while self._held > self._capacity:
                self._held -= self._cost(self._values.popitem(last=False)[1])
