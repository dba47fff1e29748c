"""os-release: which distribution it is."""

from __future__ import annotations

import pytest

from tpu_image.formats.os_release import parse


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "NAME=\"Ubuntu\"\nVERSION_ID='22.04'\nID=ubuntu\n",
            {"NAME": "Ubuntu", "VERSION_ID": "22.04", "ID": "ubuntu"},
        ),
        ("# ID=debian\n\nID = x\nnonsense\nid=lower\n=x\n", {}),
        ("ID=a\nID=b\n", {"ID": "b"}),
        (r'NAME="a \"b\" \$c \\"', {"NAME": r'a "b" $c \\'[:-1]}),
        (r"NAME='a \b'", {"NAME": r"a \b"}),
        ('NAME="', {"NAME": '"'}),
        ("NAME=$(reboot)", {"NAME": "$(reboot)"}),
    ],
)
def test_assignments_are_read_and_nothing_is_expanded(text: str, expected: dict[str, str]) -> None:
    assert parse(text) == expected
