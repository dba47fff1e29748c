"""``/etc/environment``: read as pam_env does, changed in place once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpu_image.formats import FormatError, pam_environment
from tpu_image.formats.pam_environment import Assignment

LINES = st.lists(
    st.sampled_from(
        [
            "",
            "#",
            "# note",
            "KEY=1",
            "KEY=2 # why",
            "export KEY=3",
            "KEY",
            "OTHER=a b",
            "OTHER='x'",
            "bad key=1",
            "K\\",
        ]
    )
    | st.text(alphabet="KEY=#\\ \"'xé\t\r", max_size=12)
)
TEXTS = st.tuples(LINES, st.booleans()).map(lambda t: "\n".join(t[0]) + ("\n" if t[1] else ""))
VALUES = st.text(alphabet="ab01/ .'\"=é", max_size=10)


def effective(text: str, name: str) -> str | None:
    assignment = pam_environment.effective(text, name)
    return None if assignment is None else assignment.value


def others(text: str, name: str) -> list[tuple[str, str | None]]:
    return [(a.name, a.value) for a in pam_environment.parse(text) if a.name != name]


@given(TEXTS, VALUES)
def test_a_value_that_was_set_is_in_effect_and_setting_it_again_changes_nothing(
    text: str, value: str
) -> None:
    changed = pam_environment.set_value(text, "KEY", value)
    assert effective(changed, "KEY") == value
    assert pam_environment.set_value(changed, "KEY", value) == changed


@given(TEXTS, VALUES)
def test_setting_a_value_keeps_every_other_assignment_and_comment(text: str, value: str) -> None:
    changed = pam_environment.set_value(text, "KEY", value)
    assert others(changed, "KEY") == others(text, "KEY")
    for line in text.split("\n"):
        _, hash_sign, comment = line.partition("#")
        assert hash_sign + comment in changed


@given(TEXTS, VALUES)
def test_a_changed_name_stands_there_once(text: str, value: str) -> None:
    changed = pam_environment.set_value(text, "KEY", value)
    if changed != text:
        assert [a.value for a in pam_environment.parse(changed) if a.name == "KEY"] == [value]


CHANGES = [
    ("", "KEY=9\n"),
    ("A=1\n", "A=1\nKEY=9\n"),
    ("A=1", "A=1\nKEY=9\n"),
    ("KEY=1\nA=1\n", "KEY=9\nA=1\n"),
    ("KEY=1\nA=1\nKEY=2\nB=1\n", "A=1\nKEY=9\nB=1\n"),
    ("KEY=1 # chosen by me\n", "# chosen by me\nKEY=9\n"),
    ("#KEY=1\n", "#KEY=1\nKEY=9\n"),
    ("KEY=1\\\n2\nA=1\n", "KEY=9\nA=1\n"),
    ("A=x\\\n", "KEY=9\nA=x\\\n"),
    ("KEY=9\nKEY\n", "KEY=9\n"),
    ('KEY="9" \n', "KEY=9\n"),
]


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_a_key_is_replaced_in_place_or_appended(before: str, after: str) -> None:
    assert pam_environment.set_value(before, "KEY", "9") == after


@pytest.mark.parametrize("text", ["KEY=9\n", 'KEY="9"', "KEY=1\nKEY=9\n", "export KEY='9\n", "KEY=9# why\n"])
def test_text_that_says_so_already_is_left_alone(text: str) -> None:
    assert pam_environment.set_value(text, "KEY", "9") == text


def test_a_value_with_a_quote_at_its_ends_is_quoted_once_more() -> None:
    assert pam_environment.set_value("", "KEY", "'a'") == "KEY=\"'a'\"\n"


@pytest.mark.parametrize("value", ["a#b", "a\nb", "a\0b"])
def test_a_value_that_pam_env_could_not_read_back_is_refused(value: str) -> None:
    with pytest.raises(FormatError):
        pam_environment.set_value("A=1\n", "KEY", value)


def test_a_line_has_its_number() -> None:
    assert pam_environment.parse("# x\n\nA=1\\\n2\nB='a b'#c\n") == [
        Assignment("A", "12", 3),
        Assignment("B", "a b", 5),
    ]


def test_a_file_with_nul_is_refused_with_its_line() -> None:
    with pytest.raises(FormatError) as refused:
        pam_environment.parse("A=1\nB=\0\n")
    assert refused.value.line == 2
