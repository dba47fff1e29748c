"""The file that shells and systemd read: what is written, what is refused, what is read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpu_image.formats import FormatError, tpu_env
from tpu_image.formats.tpu_env import Assignment
from tpu_image.formats.variable_names import READONLY_IN_SHELLS, is_name, is_reserved

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,20}", fullmatch=True).filter(
    lambda name: not is_reserved(name)
)
VALUES = st.text().filter(lambda value: all(map(tpu_env.is_representable, value)))


@given(st.dictionaries(NAMES | st.sampled_from(READONLY_IN_SHELLS), VALUES))
def test_what_is_written_is_read_back(values: dict[str, str]) -> None:
    read = tpu_env.values(tpu_env.parse(tpu_env.serialise(values, heading="written\nby a test")))
    assert {name: read[name] for name in values} == values


@given(st.dictionaries(NAMES | st.sampled_from(READONLY_IN_SHELLS), VALUES))
def test_shells_never_see_a_readonly_name_and_find_its_value_under_another(values: dict[str, str]) -> None:
    seen = {a.name: a.value for a in tpu_env.parse(tpu_env.serialise(values)) if a.shell}
    for name in READONLY_IN_SHELLS:
        assert name not in seen
        if name in values:
            assert seen[f"TPU_{name}"] == values.get(f"TPU_{name}", values[name])


@given(st.text())
def test_any_text_is_read_or_refused_with_a_line(text: str) -> None:
    try:
        tpu_env.parse(text)
    except FormatError as error:
        refused = error
    else:
        return
    assert refused.line >= 1 or "not closed" in refused.reason


def test_the_file_is_written_as_the_documents_script_does_where_that_works() -> None:
    assert tpu_env.serialise({"TYPE": "V6E", "ALT": "false"}, heading="By tpu-image.") == (
        '# By tpu-image.\nTYPE="V6E"\nALT="false"\n'
    )


def test_four_characters_are_escaped() -> None:
    assert tpu_env.serialise({"A": 'a"b\\c$d`e'}) == 'A="a\\"b\\\\c\\$d\\`e"\n'


REFUSED_VALUES = [
    ("a\nb", "newline"),
    ("a\0b", "NUL"),
    ("a\rb", "carriage return"),
    ("a\x1bb", "U+001B"),
    ("a\x7fb", "U+007F"),
    ("\ud800", "U+D800"),
    ("\ufeff", "U+FEFF"),
    ("\ufffe", "U+FFFE"),
    ("\ufdd0", "U+FDD0"),
    ("\U0010ffff", "U+10FFFF"),
    ("x" * (tpu_env.ASSIGNMENT_LIMIT - 5), "longer than 131071 bytes"),
    ("é" * 70_000, "longer than 131071 bytes"),
]


@pytest.mark.parametrize(("value", "reason"), REFUSED_VALUES, ids=[reason for _, reason in REFUSED_VALUES])
def test_a_value_that_not_everyone_can_read_is_refused_by_name(value: str, reason: str) -> None:
    with pytest.raises(FormatError, match="LABEL") as refused:
        tpu_env.serialise({"TYPE": "V6E", "LABEL": value})
    assert reason in refused.value.reason


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A=B", "é", "A\nB", "<<", "A.B", "٣"])
def test_a_name_that_shells_do_not_accept_is_refused(name: str) -> None:
    assert not is_name(name)
    with pytest.raises(FormatError, match="not a name"):
        tpu_env.serialise({name: "x"})


@pytest.mark.parametrize(
    "name",
    ["PATH", "HOME", "LD_PRELOAD", "BASH_ENV", "ENV", "IFS", "PS4", "PYTHONPATH", "SHELLOPTS", "TMOUT"],
)
def test_a_name_that_would_change_shells_or_programs_is_refused(name: str) -> None:
    with pytest.raises(FormatError, match=f"{name} has a meaning of its own"):
        tpu_env.serialise({name: "x"})


KNOWN_KEYS = [
    "ACCELERATOR_TYPE",
    "TYPE",
    "TOPOLOGY",
    "HOST_BOUNDS",
    "CHIPS_PER_HOST_BOUNDS",
    "TPU_PROCESS_BOUNDS",
    "TPU_CHIPS_PER_PROCESS_BOUNDS",
    "WRAP",
    "ALT",
    "TPU_TOPOLOGY_WRAP",
    "TPU_TOPOLOGY_ALT",
    "WORKER_ID",
    "NODE_ID",
    "ZONE",
    "UID",
    "CONSUMER_PROJECT_ID",
    "CONSUMER_PROJECT_NUMBER",
    "RUNTIME_VERSION",
    "TPU_RUNTIME_METRICS_PORTS",
    "VBARCONTROL_AGENT_DOCKER_URL",
    "HEALTH_AGENT_DOCKER_URL",
]


def test_every_key_seen_in_the_field_is_accepted() -> None:
    tpu_env.serialise(dict.fromkeys(KNOWN_KEYS, "x"))


def test_every_refusal_is_named_at_once() -> None:
    with pytest.raises(FormatError) as refused:
        tpu_env.serialise({"PATH": "x", "A": "\n", "B": "fine"})
    assert "PATH" in refused.value.reason
    assert "the value of A" in refused.value.reason
    assert "B" not in refused.value.reason.replace("PATH", "")


def test_a_file_larger_than_the_limit_is_refused() -> None:
    with pytest.raises(FormatError, match="larger than 1048576 bytes"):
        tpu_env.serialise({f"A{n}": "x" * 131_000 for n in range(9)})


ACCEPTED_LINES = [
    ("A=", ""),
    ("A=2x2x2", "2x2x2"),
    ("A='a\"b$c\\'", 'a"b$c\\'),
    ('A="a\'b"', "a'b"),
    (' A="x" \t', "x"),
    ('A="a\\b"', "a\\b"),
    ("A=gcr.io/x:1", "gcr.io/x:1"),
]


@pytest.mark.parametrize(("line", "value"), ACCEPTED_LINES)
def test_other_spellings_that_mean_the_same_to_both_are_read(line: str, value: str) -> None:
    assert tpu_env.parse(f"# by another\n\n{line}\n") == [Assignment("A", value, 3)]


DISAGREEING_LINES = [
    'A="x$HOME"',
    'A="`id`"',
    "A=a b",
    "A=a\\b",
    "A='a'b",
    "A='it'\\''s'",
    "A=~",
    'A="x" # no comment to systemd',
    "A=x\r",
    'A="unclosed',
    "A='unclosed",
    "export A=x",
    "A",
    "A =x",
    ";A=x",
    "A=x;B=y",
    "# a comment that goes on \\",
    "A='\x01'",
    "if true; then",
]


@pytest.mark.parametrize("line", DISAGREEING_LINES)
def test_a_line_that_shells_and_systemd_read_differently_is_refused_with_its_number(line: str) -> None:
    with pytest.raises(FormatError) as refused:
        tpu_env.parse(f"B=1\n{line}\nC=2\n")
    assert refused.value.line == 2


def test_a_block_for_systemd_that_does_not_end_is_refused() -> None:
    with pytest.raises(FormatError, match="not closed"):
        tpu_env.parse("if false; then\nUID=1\n")
