"""SHA-256 of files, beside other work."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from tpu_image.progress import SILENT, Progress

INTERVAL = 0.2
"""Seconds between two reports while a hash is waited for."""

PIECE = 1 << 20


def sha256_of(path: Path, progress: Progress = SILENT) -> str:
    """Give the SHA-256 of a file, in hexadecimal."""
    return _Hashing(path).run(progress)


@contextlib.contextmanager
def hashed(path: Path, progress: Progress = SILENT) -> Iterator[Callable[[], str]]:
    """Take the SHA-256 of a file beside other work; the function given waits for it, in hexadecimal.

    Where the block ends before that, the hashing ends too.
    """
    hashing = _Hashing(path)
    with ThreadPoolExecutor(1, thread_name_prefix="hash") as pool:
        digest = pool.submit(hashing.run)

        def result() -> str:
            while wait((digest,), timeout=INTERVAL).not_done:
                progress.at("hashing", hashing.done, path.stat().st_size)
            return digest.result()

        try:
            yield result
        finally:
            hashing.stop.set()


class _Hashing:
    """The SHA-256 of a file, as far as it is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stop = threading.Event()
        self.done = 0

    def run(self, progress: Progress = SILENT) -> str:
        digest = hashlib.sha256()
        with self.path.open("rb", buffering=0) as file:
            total = os.fstat(file.fileno()).st_size
            while not self.stop.is_set() and (chunk := file.read(PIECE)):
                digest.update(chunk)
                self.done += len(chunk)
                progress.at("hashing", self.done, total)
        return digest.hexdigest()
