"""Files of /etc/pam.d."""

from __future__ import annotations

import pytest

from tpu_image.formats.pam import Rule, parse_rules


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("session required pam_limits.so", Rule("session", "required", "pam_limits.so", (), 1)),
        ("-Session Optional pam_limits.so", Rule("session", "optional", "pam_limits.so", (), 1)),
        (
            "\n\tsession [success=ok default=bad]\t/lib/pam_limits.so conf=/x set_all # why",
            Rule("session", "[success=ok default=bad]", "/lib/pam_limits.so", ("conf=/x", "set_all"), 2),
        ),
        ("session \\\n required \\\n pam_limits.so", Rule("session", "required", "pam_limits.so", (), 1)),
        ("@include common-session", Rule("@include", "", "common-session", (), 1)),
        ("session substack system-auth", Rule("session", "substack", "system-auth", (), 1)),
    ],
)
def test_a_line_is_this_rule(text: str, expected: Rule) -> None:
    assert parse_rules(text) == [expected]


@pytest.mark.parametrize(
    "text", ["", "# session required pam_limits.so", "session required", "@include", "["]
)
def test_a_line_without_a_module_is_no_rule(text: str) -> None:
    assert parse_rules(text) == []


def test_includes_are_told_from_modules() -> None:
    rules = parse_rules("@include a\nsession include b\nsession required c\n")
    assert [rule.includes for rule in rules] == [True, True, False]
