"""Unit files: read as systemd reads them, edited without losing a byte."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tpu_image.formats import FormatError
from tpu_image.formats.systemd_unit import (
    LINE_LIMIT,
    Configuration,
    UnitFile,
    order_by_name,
    related_directories,
    unit_type,
)

LINES = (
    "[Manager]\n",
    "[Service]\n",
    "DefaultLimitNOFILE=1024:524288\n",
    "DefaultLimitNOFILE = 5 \\\n",
    "# said \\\n",
    "; said\n",
    "  goes on\\\n",
    "nonsense\n",
    "\n",
    "A=b",
    "A=b\r\n",
    "\ufeff",
    "\udcff=\x00",
    "[\n",
)
texts = st.lists(st.sampled_from(LINES), max_size=10).map("".join)


def triples(text: str) -> list[tuple[str, str, str]]:
    return [(setting.section, setting.key, setting.value) for setting in UnitFile(text).settings]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[A]\nk=v\n", [("A", "k", "v")]),
        (" [A] \n  k =  v w \n", [("A", "k", "v w")]),
        ("[A]\n#k=v\n;k=v\n  # k=v\n", []),
        ("k=outside\n[A]\n=no key\nno equals sign\n", []),
        ("[A]\nk=a \\\n# not this\n  b\\\nc\n", [("A", "k", "a    b c")]),
        ("[A]\nk=a\\\\\nl=b\n", [("A", "k", "a\\\\"), ("A", "l", "b")]),
        ("[A]\nk=a\\", [("A", "k", "a")]),
        ("[A]\nk=v ; part of it # this too\n", [("A", "k", "v ; part of it # this too")]),
        ("\ufeff[A]\r\nk=v\r\n", [("A", "k", "v")]),
        ("[A]\nk=v\n[A]\nK=w\n", [("A", "k", "v"), ("A", "K", "w")]),
    ],
)
def test_a_text_has_these_settings(text: str, expected: list[tuple[str, str, str]]) -> None:
    assert triples(text) == expected


def test_lines_are_numbered_as_an_editor_does() -> None:
    file = UnitFile("[A]\n\nk=a\\\n b\nnonsense\nl=c\n")
    assert [(setting.key, setting.line) for setting in file.settings] == [("k", 3), ("l", 6)]
    assert file.ignored == [5]


@pytest.mark.parametrize("broken", ["[A", "[A] # comment", '["A"]', "k=" + "x" * LINE_LIMIT])
def test_what_stands_before_a_line_that_stops_systemd_is_kept(broken: str) -> None:
    file = UnitFile(f"[A]\nk=v\n{broken}\nl=w\n")
    assert [setting.key for setting in file.settings] == ["k"]
    assert file.error is not None
    assert file.error.line == 3
    with pytest.raises(FormatError):
        file.with_setting("A", "k", "w")


@example("[Manager]\nk=\0# said \\\n", "Manager", "B")
@given(texts, st.sampled_from(["Manager", "New"]), st.sampled_from(["DefaultLimitNOFILE", "B"]))
def test_an_edit_decides_its_key_and_touches_nothing_else(text: str, section: str, key: str) -> None:
    before = UnitFile(text)
    if before.error:
        return
    after = before.with_setting(section, key, "100000:524288")
    last = Configuration([("f", after)]).last(section, key)
    assert last is not None
    assert last.value == "100000:524288"
    assert after.with_setting(section, key, "100000:524288").text == after.text
    kept = [t for t in triples(text) if t[:2] != (section, key)]
    assert [t for t in triples(after.text) if t[:2] != (section, key)] == kept
    assert comments(after.text) == comments(text)


def comments(text: str) -> list[str]:
    """Comment lines; a NUL ends a line too (systemd, read_line())."""
    return [line for line in re.split("[\n\0]", text) if line.startswith(("#", ";"))]


@given(texts)
def test_the_text_is_kept_and_the_offsets_lead_to_the_assignments(text: str) -> None:
    file = UnitFile(text)
    assert file.text == text
    for setting in file.settings:
        written = text[setting.start : setting.end]
        assert [t[1:] for t in triples("[S]\n" + written)] == [(setting.key, setting.value)]


@pytest.mark.parametrize(
    "text", ["[S]\nA=b\\", "[S]\nA=b\\\n", "[S]\nA=b\\\n# said\n", "[S]\nA=b \\\n ;\n", "[S]\nno sign\\\n"]
)
def test_a_continuation_that_is_open_at_the_end_does_not_swallow_what_is_added(text: str) -> None:
    before = [setting for setting in triples(text) if setting[1] == "A"]
    for section in ("S", "T"):
        after = UnitFile(text).with_setting(section, "B", "c")
        assert triples(after.text) == [*before, (section, "B", "c")]


def test_a_line_break_cannot_be_smuggled_into_a_value() -> None:
    with pytest.raises(FormatError):
        UnitFile("").with_setting("Service", "Environment", "A=b\nExecStart=/bin/sh")


def configuration(*texts: str) -> Configuration:
    return Configuration([(f"/{number}.conf", UnitFile(text)) for number, text in enumerate(texts)])


def test_an_empty_assignment_takes_back_what_came_before() -> None:
    merged = configuration("[Service]\nExecStart=/a\n", "[Service]\nExecStart=\nExecStart=/b\nExecStart=/c\n")
    found = [(v.value, v.path, v.line) for v in merged.values("Service", "ExecStart")]
    assert found == [("/b", "/1.conf", 3), ("/c", "/1.conf", 4)]
    assert len(merged.all("Service", "ExecStart")) == 4


def test_the_last_file_decides_a_single_value() -> None:
    merged = configuration("[S]\nk=1\n", "[S]\nk=2\n[T]\nk=3\n")
    last = merged.last("S", "k")
    assert last is not None
    assert (last.value, last.path, last.line) == ("2", "/1.conf", 2)
    assert merged.last("S", "absent") is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("foo.service", ["foo.service.d"]),
        ("a-b-c.service", ["a-b-c.service.d", "a-b-.service.d", "a-.service.d"]),
        ("foo@x.service", ["foo@x.service.d", "foo@.service.d"]),
        (
            "a-b@x.service",
            ["a-b@x.service.d", "a-b@.service.d", "a-.service.d", "a-@x.service.d", "a-@.service.d"],
        ),
        ("-.mount", ["-.mount.d"]),
    ],
)
def test_a_unit_is_extended_by_these_directories(name: str, expected: list[str]) -> None:
    assert related_directories(name, ".d") == expected


def test_files_are_read_by_name_and_the_first_directory_hides_the_same_name() -> None:
    paths = ["/etc/x.d/20.conf", "/etc/x.d/90.conf", "/usr/x.d/10.conf", "/usr/x.d/20.conf"]
    assert order_by_name(paths) == ["/usr/x.d/10.conf", "/etc/x.d/20.conf", "/etc/x.d/90.conf"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.service", "service"), ("a.b.socket", "socket"), (".service", ""), ("a.conf", ""), ("README", "")],
)
def test_the_suffix_says_the_type(name: str, kind: str) -> None:
    assert unit_type(name) == kind
