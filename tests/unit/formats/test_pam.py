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


@pytest.mark.parametrize(
    ("control", "module", "actions"),
    [
        ("required", "pam_unix.so", {"ok", "bad"}),
        ("sufficient", "pam_unix.so", {"done", "ignore"}),
        ("sufficient", "pam_permit.so", {"done"}),
        ("sufficient", "/lib/security/pam_deny.so", {"ignore"}),
        ("[default=1]", "pam_permit.so", {"1"}),
        ("[success=2 default=ignore]", "pam_succeed_if.so", {"2", "ignore"}),
        ("[success=1]", "pam_unix.so", {"1", "bad"}),
    ],
)
def test_a_control_says_what_may_follow(control: str, module: str, actions: set[str]) -> None:
    (rule,) = parse_rules(f"session {control} {module}\n")
    assert rule.actions == actions
