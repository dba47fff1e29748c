"""sshd_config: the directives that hold for every connection."""

from __future__ import annotations

import pytest

from tpu_image.formats.sshd_config import Directive, parse_directives


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("UsePAM yes", Directive("usepam", ("yes",), 1)),
        ("  usepam\t=  yes  # comment", Directive("usepam", ("yes",), 1)),
        ('UsePAM="yes"', Directive("usepam", ("yes",), 1)),
        ("\nInclude a.conf /b/*.conf", Directive("include", ("a.conf", "/b/*.conf"), 2)),
    ],
)
def test_a_line_is_this_directive(text: str, expected: Directive) -> None:
    assert parse_directives(text) == [expected]


def test_what_follows_a_match_holds_for_some_alone() -> None:
    assert parse_directives("# UsePAM no\n\nMatch User bob\nUsePAM no\n") == []
