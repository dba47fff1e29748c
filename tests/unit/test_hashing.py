from __future__ import annotations

import hashlib
from pathlib import Path

from tpu_image.hashing import PIECE, hashed, sha256_of
from tpu_image.progress import BYTES, Progress


class Told(Progress):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.states: list[tuple[int, int]] = []

    def at(self, stage: str, done: int = 0, total: int = 0, unit: str = BYTES) -> None:
        self.states.append((done, total))


def test_the_sha256_is_that_of_the_content_and_told_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (PIECE + 1))
    told = Told()
    assert sha256_of(path, told) == hashlib.sha256(b"x" * (PIECE + 1)).hexdigest()
    assert told.states == [(PIECE, PIECE + 1), (PIECE + 1, PIECE + 1)]
    with hashed(path) as digest:
        assert digest() == sha256_of(path)
