"""Entries of the Boot Loader Specification, GRUB's environment block, its defaults, and fstab."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpu_image.formats import FormatError
from tpu_image.formats.boot_loader_spec import BootLoaderEntry
from tpu_image.formats.fstab import parse_fstab
from tpu_image.formats.grub_defaults import LINUX, LINUX_DEFAULT, GrubDefaults, kernel_view
from tpu_image.formats.grub_environment import SIGNATURE, EnvironmentBlock

ENTRY = """\
# made by kernel-install
title Fedora Linux 40
version 6.8.5
linux /vmlinuz-6.8.5
options root=UUID=1 ro $kernelopts
options  ${tuned_params} quiet \t
grub_users $grub_users
"""


def test_an_entry_gives_its_command_line() -> None:
    entry = BootLoaderEntry.parse(ENTRY)
    assert (entry.get("title"), entry.get("linux"), entry.get("none")) == (
        "Fedora Linux 40",
        "/vmlinuz-6.8.5",
        "",
    )
    assert entry.variables() == {"kernelopts", "tuned_params"}
    assert entry.options({"kernelopts": "a b"}) == "root=UUID=1 ro a b  quiet"
    assert [field.line for field in entry.all("options")] == [5, 6]


def test_the_options_of_an_entry_are_replaced_in_place() -> None:
    entry = BootLoaderEntry.parse(ENTRY).with_options("x")
    assert entry.text == ENTRY.replace("${tuned_params} quiet", "x")
    assert BootLoaderEntry.parse("title x").with_options("y").text == "title x\noptions y\n"


@given(st.text(alphabet="options \t\n\r#$a={}", max_size=60))
def test_any_entry_is_kept(text: str) -> None:
    entry = BootLoaderEntry.parse(text)
    assert entry.text == text
    assert all(text[field.start : field.end] == field.value for field in entry.fields)


def block(*lines: str) -> str:
    text = SIGNATURE + "".join(f"{line}\n" for line in lines)
    return text + "#" * (1024 - len(text))


def test_a_block_gives_its_variables() -> None:
    parsed = EnvironmentBlock.parse(block("saved_entry=a>b", "kernelopts=root=UUID=1 ro", "x=a\\\\b"))
    assert parsed.get("saved_entry") == "a>b"
    assert parsed.get("kernelopts") == "root=UUID=1 ro"
    assert parsed.get("x") == "a\\b"
    assert parsed.get("y") is None
    assert (parsed.line_of("kernelopts"), parsed.line_of("y")) == (3, 0)


@pytest.mark.parametrize("text", ["", "x=1\n", SIGNATURE + "no variable\n", SIGNATURE + "x=1"])
def test_what_is_no_block_is_refused(text: str) -> None:
    with pytest.raises(FormatError):
        EnvironmentBlock.parse(text)


def test_a_block_without_room_is_refused() -> None:
    with pytest.raises(FormatError, match="no room"):
        EnvironmentBlock.parse(block("x=1")).with_value("x", "y" * 1024)


values = st.text(alphabet="ab=# \\\né", max_size=20)


@given(name=st.sampled_from(["a", "saved_entry", "new"]), value=values, other=values)
def test_a_block_keeps_its_size_and_its_other_variables(name: str, value: str, other: str) -> None:
    start = EnvironmentBlock.parse(block("a=1", "saved_entry=2")).with_value("b", other)
    written = start.with_value(name, value)
    assert len(written.text.encode()) == 1024
    assert dict(written.variables) == {"a": "1", "saved_entry": "2", "b": other, name: value}
    assert EnvironmentBlock.parse(written.text) == written


def defaults(*texts: str) -> GrubDefaults:
    return GrubDefaults.parse([(f"/{number}", text) for number, text in enumerate(texts)])


def test_the_defaults_come_together_as_on_a_line() -> None:
    made = defaults(
        f'{LINUX}="a"\n{LINUX_DEFAULT}="quiet splash"\nGRUB_DEFAULT=saved\n',
        f'{LINUX}="${{{LINUX}}} b"\nGRUB_FORCE_PARTUUID=12\n',
    )
    assert made.normal == "a b quiet splash"
    assert made.recovery == " a b"
    assert made.makes_recovery
    assert made.known("GRUB_FORCE_PARTUUID") == "12"
    assert made.known("GRUB_DEFAULT") == "saved"
    assert made.deciding(LINUX) == ("/1", 1)
    assert made.deciding(LINUX_DEFAULT) == ("/0", 2)
    assert made.deciding("GRUB_TIMEOUT") == ("", 0)


def test_no_defaults_are_empty_ones() -> None:
    assert defaults().normal.strip() == ""
    assert defaults(f'{LINUX}="${{{LINUX}}} x"').known(LINUX) == " x"


def test_what_the_kernel_will_see_of_the_defaults_went_through_grub() -> None:
    assert kernel_view("""a="b c" 'd' e\\ f $x""") == '"a=b c" d "e f"'
    assert kernel_view("a=b;c=d") == "a=b"


def test_fstab_is_read() -> None:
    text = '# x\nUUID="1-2" / ext4 rw,discard 0 1\n\n/dev/sda1\t/mnt/a\\040b auto\nnone\n'
    found = [(m.spec, m.target, m.type, m.options, m.line) for m in parse_fstab(text)]
    assert found == [
        ("UUID=1-2", "/", "ext4", ("rw", "discard"), 2),
        ("/dev/sda1", "/mnt/a b", "auto", ("",), 4),
    ]
