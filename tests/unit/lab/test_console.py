"""The console tells how far a boot is, and at once when it is over, whatever else is on it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpu_image.lab.console import KEPT, Console

BOOT = [
    "SeaBIOS (version 1.16.3)\r\n",
    "Booting from Hard Disk...\r\n",
    "\x1b[2JWelcome to GRUB!\r\n",
    "[    0.000000] Linux version 6.1.0-57-cloud-amd64\r\n",
    "[    1.2] Run /init as init process\r\n",
    "[   28.8] systemd[1]: Detected virtualization qemu.\r\n",
    "\r\nDebian GNU/Linux 12 host ttyS0\r\n\r\nhost login: ",
]


def fed(*parts: str | bytes) -> Console:
    console = Console()
    for number, part in enumerate(parts):
        console.feed(part if isinstance(part, bytes) else part.encode(), float(number))
    return console


def test_stages_are_told_with_their_time() -> None:
    stages = fed(*BOOT).stages
    names = ["firmware", "boot loader", "kernel", "initramfs", "systemd", "login"]
    assert [stage.name for stage in stages] == names
    assert stages[2].seconds == 3


def test_a_stage_is_known_however_its_line_arrives() -> None:
    whole = "".join(BOOT).encode()
    one_by_one = fed(*(whole[i : i + 1] for i in range(len(whole))))
    assert [s.name for s in one_by_one.stages] == [s.name for s in fed(*BOOT).stages]


def test_a_panic_is_named() -> None:
    console = fed(*BOOT[:4], "[    3.2] Kernel panic - not syncing: VFS: Unable to mount root fs\r\n")
    assert console.ending is not None
    assert console.ending.panic
    assert console.ending.reason == "kernel panic: VFS: Unable to mount root fs"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("No bootable device.", "firmware finds no boot loader"),
        ("grub rescue> ", "GRUB finds neither"),
        ("(initramfs) ", "did not find the root"),
        ("You are in emergency mode. After logging in", "emergency mode"),
    ],
)
def test_where_a_boot_cannot_go_on_it_is_said(line: str, reason: str) -> None:
    console = fed(f"before\r\n{line}")
    assert console.ending is not None
    assert not console.ending.panic
    assert reason in console.ending.reason


def test_words_about_panics_end_nothing() -> None:
    assert fed("the service prints: No bootable device, or a kernel panic\n").ending is None


def test_the_tail_has_no_escape_sequences() -> None:
    assert fed("\x1b[0;1;31mred\x1b[0m\r\n\r\n\x1b]0;title\x07done\r\n").tail() == ["red", "0;titledone"]


def test_only_the_end_of_a_long_console_is_kept() -> None:
    console = fed(b"x" * KEPT, b"y" * 10, b"z" * KEPT)
    assert console.text == "z" * KEPT


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_no_bytes_confuse_it(parts: list[bytes]) -> None:
    console = fed(*parts)
    assert all(
        character.isprintable() or character == "\t"
        for line in console.tail()
        for character in line
        if ord(character) < 0x80
    )
