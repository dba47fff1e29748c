"""Lines of tmpfiles.d, as systemd-tmpfiles takes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpu_image.formats.tmpfiles import Line, parse


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("w /sys/a - - - - never", Line(1, "w", "/sys/a", None, "", "never")),
        ("w+! /sys/a - - - -  two words ", Line(1, "w", "/sys/a", None, "", "two words")),
        ("\n# x\nz /dev/vfio/* 0660 root tpu", Line(3, "z", "/dev/vfio/*", 0o660, "tpu", "")),
        ("d /run/x ~2775", Line(1, "d", "/run/x", 0o2775, "", "")),
        ('z "/dev/a b" 0600', Line(1, "z", "/dev/a b", 0o600, "", "")),
        ("z /dev/a rw", Line(1, "z", "/dev/a", None, "", "")),
    ],
)
def test_a_line_is_read_as_it_is_meant(text: str, line: Line) -> None:
    assert list(parse(text)) == [line]


@pytest.mark.parametrize("text", ["", "# z /dev/a 0600", "z", "z dev/a 0600", 'z "/dev/a 0600', "z - 0600"])
def test_what_means_nothing_is_left_out(text: str) -> None:
    assert list(parse(text)) == []


def test_a_pattern_stays_in_its_directory() -> None:
    (line,) = parse("z /dev/v* 0600")
    assert line.means("/dev/vfio")
    assert not line.means("/dev/vfio/0")


@given(st.text("zZwd /-*'\"\\%~0123456789abc\n\t", max_size=60))
def test_every_text_is_read(text: str) -> None:
    for line in parse(text):
        assert line.path.startswith("/")
        assert len(line.kind) == 1


@given(st.lists(st.text("wz/-0a", max_size=5), min_size=7, max_size=9).map(" ".join))
def test_a_plain_line_is_the_same_however_it_is_split(text: str) -> None:
    quoted = "".join(f"\\x{ord(c):02x}" if c == "a" else c for c in f"{text}a")
    plain = [line._replace(argument="") for line in parse(f"{text}a")]
    assert plain == [line._replace(argument="") for line in parse(quoted)]
