"""Changed pages read as they were written, whether memory or a file without a name holds them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpu_image.disks.pages import PAGE, Pages

WRITES = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, PAGE - 1), st.binary(min_size=1, max_size=40)), max_size=40
)


@given(WRITES, st.integers(0, 10))
def test_any_writes_read_back_whatever_memory_holds(writes: list[tuple[int, int, bytes]], held: int) -> None:
    pages = Pages(memory_limit=held * PAGE)
    expected: dict[int, bytearray] = {}
    for number, within, data in writes:
        data = data[: PAGE - within]
        if number not in expected:
            expected[number] = bytearray(os.urandom(PAGE))
            pages.write(number, 0, bytes(expected[number]))
        expected[number][within : within + len(data)] = data
        pages.write(number, within, data)
    assert {number: pages.read(number, 0, PAGE) for number in pages.numbers()} == expected
    assert len(pages) == len(expected)
    pages.close()


def test_what_memory_does_not_hold_is_in_a_file_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    pages = Pages(memory_limit=PAGE)
    for number in range(5):
        pages.write(number, 0, bytes([number]) * PAGE)
    assert [pages.read(number, 7, 9) for number in range(5)] == [bytes([number]) * 2 for number in range(5)]
    assert list(tmp_path.iterdir()) == []
    assert any(
        str(tmp_path) in os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if _is_open(fd)
    )
    pages.close()


def _is_open(descriptor: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{descriptor}")
