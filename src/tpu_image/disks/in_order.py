"""Work for several threads whose results are wanted in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

AHEAD = 3
"""Results that are waited for at most, for each thread: enough for none to idle while the first is written."""


def in_order(
    work: Callable[[Item], Result], items: Iterable[Item], *, threads: int
) -> Generator[Result, None, None]:
    """Give the results of ``work`` on each item, in the items' order.

    An exception of the work is passed on. Close the iterator to end the work early; what runs then is waited for.
    """
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="disk") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(work, item))
                if len(waiting) >= AHEAD * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
