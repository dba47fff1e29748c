"""limits.conf: lines, and their merge for a login as pam_limits makes it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpu_image.formats import FormatError
from tpu_image.formats.limits import LimitsFile, Login, Session, effective, format_value, order
from tpu_image.formats.resource_limits import UNLIMITED

ALICE = Login("alice", 1001, 1001, ("alice", "dev"))
ROOT = Login("root", 0, 0, ("root",))


def merged(login: Login, item: str, *texts: str, debian: bool = True) -> tuple[int | None, int | None]:
    files = [(f"/{number}", LimitsFile(text)) for number, text in enumerate(texts)]
    session = effective(files, login, item, root_by_name_only=debian)
    return (
        session.soft.value if session.soft else None,
        session.hard.value if session.hard else None,
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("* - memlock unlimited", UNLIMITED),
        ("* - memlock infinity", UNLIMITED),
        ("* - memlock -1", UNLIMITED),
        ("* - MEMLOCK 64", 64 * 1024),
        ("\t* -\tmemlock  64 # KiB", 64 * 1024),
        ("* - memlock 64 what follows is not looked at", 64 * 1024),
        ("* - memlock 64k", 64 * 1024),
        ("* - memlock +64", 64 * 1024),
        ("* - memlock 18446744073709551615", UNLIMITED),
        ("* - memlock 99999999999999999999999999", UNLIMITED),
        ("* - memlock -5", UNLIMITED),
        ("* - memlock 64\r", 64 * 1024),
        ("1000: - memlock 64", 64 * 1024),
        ("1000:2000 - memlock 64", 64 * 1024),
        (":1001 - memlock 64", 64 * 1024),
        ("@dev - memlock 64", 64 * 1024),
        ("@1000:1002 - memlock 64", 64 * 1024),
        ("alice - memlock 64", 64 * 1024),
        ("* - memlock much", None),
        ("* - memlock", None),
        ("* both memlock 64", None),
        ("# * - memlock 64", None),
        ("*\u00a0- memlock 64", None),
        ("bob - memlock 64", None),
        ("@admin - memlock 64", None),
        ("%dev - memlock 64", None),
        ("% - memlock 64", None),
        ("2000: - memlock 64", None),
        ("100x:2000 - memlock 64", None),
        (": - memlock 64", None),
        ("* - nofile 64", None),
        ("* - lockmem 64", None),
    ],
)
def test_a_line_gives_this_value(line: str, expected: int | None) -> None:
    assert merged(ALICE, "memlock", line) == (expected, expected)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("* - nofile 1\n* - nofile 2\n",), (2, 2)),
        (("* - nofile 2\n", "* - nofile 1\n"), (1, 1)),
        (("alice - nofile 1\n@dev - nofile 2\n* - nofile 3\n",), (1, 1)),
        (("@dev - nofile 2\n", "* - nofile 3\n"), (2, 2)),
        (("1000: - nofile 1\nalice - nofile 2\n",), (2, 2)),
        (("alice - nofile 2\n1000: - nofile 1\n",), (1, 1)),
        (("* soft nofile 9\n* hard nofile 5\n",), (5, 5)),
        (("* soft nofile 9\n",), (9, None)),
        (("alice soft nofile 1\n* - nofile 2\n",), (1, None)),
        (("alice hard nofile 1\n* - nofile 2\n",), (1, 1)),
        (("* - nofile 2\nalice -\n",), (None, None)),
        (("* - nofile 2\n@dev -\n",), (None, None)),
        (("* - nofile 2\n* -\n",), (2, 2)),
        (("bob -\n* - nofile 2\n",), (2, 2)),
    ],
)
def test_lines_merge_to_these_values(texts: tuple[str, ...], expected: tuple[int | None, ...]) -> None:
    assert merged(ALICE, "nofile", *texts) == expected


@pytest.mark.parametrize(
    ("text", "debian", "expected"),
    [
        ("* - nofile 5", True, None),
        ("* - nofile 5", False, 5),
        ("@root - nofile 5", True, None),
        ("@root - nofile 5", False, 5),
        ("root - nofile 5", True, 5),
        ("0: - nofile 5", True, 5),
        ("@0: - nofile 5", True, 5),
        ("root - nofile 5\n@0: - nofile 6", True, 6),
        ("root - nofile 5\n@0: - nofile 6", False, 5),
    ],
)
def test_the_wildcard_covers_root_only_where_the_module_is_not_debians(
    text: str, debian: bool, expected: int | None
) -> None:
    assert merged(ROOT, "nofile", text, debian=debian) == (expected, expected)


def test_the_deciding_line_is_named() -> None:
    file = LimitsFile("\n# x\n* hard nofile 5\n* soft nofile 9\n")
    session = effective([("/etc/security/limits.conf", file)], ALICE, "nofile")
    assert session.soft is not None
    assert (session.soft.path, session.soft.entry.line) == ("/etc/security/limits.conf", 3)
    freed = LimitsFile("alice -\n")
    assert effective([("/f", freed)], ALICE, "nofile") == Session(freed_by=("/f", freed.entries[0]))


def test_malformed_lines_are_numbered() -> None:
    text = "* - nofile\n* soft nofile x\n1:x - nofile 5\n* weak nofile 5\nx\n* - maxlogins 5\n"
    assert LimitsFile(text).ignored == [1, 2, 3, 4, 5]


LINES = ("* hard nofile 5\n", "root - memlock 1 # ä\n", "# x\n", "\n", "broken\r\n", "no end", "\udcff\n")


@given(st.lists(st.sampled_from(LINES), max_size=8).map("".join))
def test_a_line_is_added_and_nothing_else_changes(text: str) -> None:
    before = LimitsFile(text)
    assert before.text == text
    after = before.with_line("*", "hard", "nofile", "100000")
    assert after.text.startswith(text)
    assert merged(ALICE, "nofile", after.text)[1] == 100000
    assert [e for e in after.entries if e in before.entries] == before.entries


@pytest.mark.parametrize("field", ["", "a b", "a\nb", "#", "a#b"])
def test_a_field_cannot_hold_what_would_end_it(field: str) -> None:
    with pytest.raises(FormatError):
        LimitsFile("").with_line(field, "hard", "nofile", "5")


def test_drop_ins_follow_by_byte_order() -> None:
    drop_ins = ["/d/b.conf", "/d/a.conf", "/d/Z.conf", "/d/\udcff.conf", "/d/\u20ac.conf"]
    ordered = ["/m", "/d/Z.conf", "/d/a.conf", "/d/b.conf", "/d/\u20ac.conf", "/d/\udcff.conf"]
    assert order("/m", drop_ins) == ordered


def test_sizes_are_written_in_kibibytes() -> None:
    assert format_value("memlock", 65536) == "64"
    assert format_value("nofile", 65536) == "65536"
    assert format_value("memlock", UNLIMITED) == "unlimited"
