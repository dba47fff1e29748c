"""Resource limits in systemd settings and in /proc."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpu_image.formats.resource_limits import (
    UNLIMITED,
    Limit,
    describe,
    format_setting,
    parse_process_limits,
    parse_setting,
)

PROCESS_LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max cpu time              unlimited            unlimited            seconds
Max open files            1024                 524288               files
Max locked memory         8388608              unlimited            bytes
"""


@pytest.mark.parametrize(
    ("item", "text", "expected"),
    [
        ("nofile", "1024", (1024, 1024)),
        ("nofile", "1024:524288", (1024, 524288)),
        ("nofile", "0x10", (16, 16)),
        ("nofile", "010", (8, 8)),
        ("nofile", "infinity", (UNLIMITED, UNLIMITED)),
        ("nofile", "100K", None),
        ("nofile", "2:1", None),
        ("nofile", "unlimited", None),
        ("nofile", "-1", None),
        ("nofile", "", None),
        ("memlock", "64M", (64 * 2**20,) * 2),
        ("memlock", "1.5G:infinity", (3 * 2**29, UNLIMITED)),
        ("memlock", "1G 512M", (3 * 2**29,) * 2),
        ("memlock", "512M 1G", None),
        ("memlock", "64 M", (64 * 2**20,) * 2),
        ("memlock", "64m", None),
        ("memlock", "unlimited", None),
        ("memlock", "1:", None),
    ],
)
def test_a_setting_means_this_limit(item: str, text: str, expected: tuple[int, int] | None) -> None:
    assert parse_setting(item, text) == (Limit(*expected) if expected else None)


limits = st.tuples(st.integers(0, UNLIMITED), st.integers(0, UNLIMITED)).map(lambda t: Limit(min(t), max(t)))


@given(limits, st.sampled_from(["nofile", "memlock"]))
def test_a_limit_survives_being_written(limit: Limit, item: str) -> None:
    assert parse_setting(item, format_setting(limit)) == limit


def test_the_limits_of_a_process_are_read() -> None:
    assert parse_process_limits(PROCESS_LIMITS) == {
        "nofile": Limit(1024, 524288),
        "memlock": Limit(8388608, UNLIMITED),
    }


@pytest.mark.parametrize("text", ["", "Max open files", "Max open files x y files", "Max open files 1"])
def test_what_is_no_table_of_limits_gives_none(text: str) -> None:
    assert parse_process_limits(text) == {}


@pytest.mark.parametrize(
    ("item", "value", "words"),
    [
        ("memlock", 65536, "64 KiB"),
        ("memlock", 8 * 2**20, "8 MiB"),
        ("memlock", 1000, "1000 bytes"),
        ("memlock", UNLIMITED, "unlimited"),
        ("nofile", 1024, "1024"),
    ],
)
def test_values_are_said_as_people_say_them(item: str, value: int, words: str) -> None:
    assert describe(item, value) == words
