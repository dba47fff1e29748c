"""grub.cfg: which kernels it boots, with what, and which of them by default."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpu_image.formats import FormatError
from tpu_image.formats.edits import Edit
from tpu_image.formats.grub_config import GrubConfig
from tpu_image.formats.grub_script import kernel_text, quoted, words_of

CONFIG = """\
# A comment with a ' in it
if [ -s $prefix/grubenv ]; then
  load_env
fi
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
   set next_entry=
else
   set default="${saved_entry}"
fi
function gfxmode { set gfxpayload="${1}"; }
set vt_handoff=vt.handoff=7
menuentry 'Linux' --class os $menuentry_id_option 'simple' {
\tlinux\t/boot/vmlinuz-2 root=UUID=1 ro  quiet $vt_handoff
\tinitrd /boot/initrd.img-2
}
submenu "Older > others" $menuentry_id_option 'advanced' {
\tmenuentry 'Linux, with 2' --id 'two' {
\t\tif [ x = y ]; then linux /boot/vmlinuz-2 root=UUID=1 ro a; else
\t\t\tlinuxefi /boot/vmlinuz-2 root=UUID=1 ro "b c" 'd e' f\\ g
\t\tfi
\t}
\tmenuentry 'Linux, with 1 (recovery mode)' --id=one { linux16 /boot/vmlinuz-1 single; }
}
menuentry "Memory test (memtest86+)" {
\tlinux16 /boot/memtest86+.bin console=ttyS0
}
menuentry 'Firmware' { fwsetup }
"""


def test_every_kernel_line_is_found_with_its_entry_line_and_words() -> None:
    found = [
        (
            line.line,
            line.entry.path if line.entry else "",
            line.kernel,
            line.kernel_text({"vt_handoff": "v=7"}),
        )
        for line in GrubConfig.parse(CONFIG).linux_lines
    ]
    assert found == [
        (14, "Linux", "/boot/vmlinuz-2", "root=UUID=1 ro quiet v=7"),
        (19, "Older >> others>Linux, with 2", "/boot/vmlinuz-2", "root=UUID=1 ro a"),
        (20, "Older >> others>Linux, with 2", "/boot/vmlinuz-2", 'root=UUID=1 ro "b c" "d e" "f g"'),
        (23, "Older >> others>Linux, with 1 (recovery mode)", "/boot/vmlinuz-1", "single"),
    ]


def test_entries_have_titles_ids_and_lines() -> None:
    found = [
        (entry.title, entry.id, entry.line, entry.is_submenu) for entry in GrubConfig.parse(CONFIG).entries
    ]
    assert found == [
        ("Linux", "simple", 13, False),
        ("Older > others", "advanced", 17, True),
        ("Linux, with 2", "two", 18, False),
        ("Linux, with 1 (recovery mode)", "one", 23, False),
        ("Memory test (memtest86+)", "", 25, False),
        ("Firmware", "", 28, False),
    ]


DEFAULTS = {
    "": "Linux",
    "0": "Linux",
    "1": "Linux, with 2",
    "1>1": "Linux, with 1 (recovery mode)",
    "advanced>one": "Linux, with 1 (recovery mode)",
    "Older >> others>Linux, with 2": "Linux, with 2",
    "simple": "Linux",
    "2": "Memory test (memtest86+)",
    "9": "Linux",
    "no such entry": "Linux",
    "advanced>no such entry": "Linux, with 2",
    "one": "Linux",
    "9" * 5000: "Linux",
}


@pytest.mark.parametrize(("saved", "title"), DEFAULTS.items(), ids=[name[:20] for name in DEFAULTS])
def test_the_entry_that_boots_is_the_one_saved(saved: str, title: str) -> None:
    entry = GrubConfig.parse(CONFIG).default_entry({"saved_entry": saved})
    assert entry is not None
    assert entry.title == title


def test_a_next_entry_wins_once() -> None:
    entry = GrubConfig.parse(CONFIG).default_entry({"saved_entry": "0", "next_entry": "1>1"})
    assert entry is not None
    assert entry.id == "one"


def test_a_default_for_the_next_boot_alone_does_not_count_without_one() -> None:
    text = "set default=b\nif x; then set default=${next_entry}; fi\nmenuentry a {\n}\nmenuentry b {\n}\n"
    entry = GrubConfig.parse(text).default_entry({})
    assert entry is not None
    assert entry.title == "b"


def test_a_default_written_down_needs_no_environment() -> None:
    entry = GrubConfig.parse("set default='b'\nmenuentry a {\n}\nmenuentry b {\n}\n").default_entry({})
    assert entry is not None
    assert entry.title == "b"


def test_no_entries_no_default() -> None:
    assert GrubConfig.parse("set default=0\nsubmenu x {\n}\n").default_entry({}) is None


WORDS = {
    r'a"b c"\ d': ["ab c d"],
    "'$x'": ["$x"],
    '"$x"': ["1 2"],
    "$x": ["1", "2"],
    "a${x}b": ["a1", "2b"],
    "$unset": [],
    '"$unset"': [""],
    "''": [""],
    r'"a\"b\$c\\d\e"': [r'a"b$c\d\e'],
    "a\\\nb": ["ab"],
    "c#d": ["c#d"],
    "$": ["$"],
    "x=a,b": ["x=a,b"],
}


@pytest.mark.parametrize(("raw", "arguments"), WORDS.items())
def test_a_word_becomes_the_arguments_that_grub_makes_of_it(raw: str, arguments: list[str]) -> None:
    (word,) = words_of(raw)
    assert word.expand({"x": "1 2"}) == arguments


def test_grub_quotes_again_what_it_hands_to_the_kernel() -> None:
    arguments = ["a b", 'c"d', r"e\f", r"g\x20h"]
    assert kernel_text(arguments) == r'"a b" c\"d e\\f g\x20h'


@given(st.text(alphabet="ab '\"\\${}#;|&=\n", max_size=12))
def test_a_quoted_text_is_read_back_as_it_was(text: str) -> None:
    if "\n" in text:  # A backslash in front of a newline joins lines in GRUB: such a text is no single word.
        return
    (word,) = words_of(quoted(text))
    assert word.expand({}) == [text]


BROKEN = {
    "a quote that is not closed": ("menuentry 'x {\n", 1),
    "a block that is not closed": ("\nmenuentry x {\n", 2),
    "a closer of nothing": ("a\n}\n", 1),
    "blocks without end": ("menuentry x {\n" * 50, 33),
    "kernels without end": ("linux /x\n" * 1001, 0),
}


@pytest.mark.parametrize(("text", "line"), BROKEN.values(), ids=BROKEN)
def test_what_grub_could_not_read_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(FormatError) as error:
        GrubConfig.parse(text)
    assert error.value.line == line


@given(st.text(alphabet="menutryli x{}'\"\\$#;\n\t=>", max_size=80), st.integers(0, len(CONFIG)))
def test_any_text_is_kept_or_refused(noise: str, at: int) -> None:
    text = CONFIG[:at] + noise + CONFIG[at:]
    try:
        config = GrubConfig.parse(text)
    except FormatError:
        return
    assert config.text == text
    for line in config.linux_lines:
        arguments = text[line.start : line.end]
        assert [word.raw for word in words_of(arguments)] == [word.raw for word in line.arguments]
    config.default_entry({"saved_entry": noise})


def test_a_line_is_edited_and_the_rest_kept() -> None:
    config = GrubConfig.parse(CONFIG)
    line = config.linux_lines[0]
    edited = config.edited([Edit(line.end, line.end, " idle=poll")])
    assert edited.text == CONFIG.replace("$vt_handoff\n", "$vt_handoff idle=poll\n")


@pytest.mark.slow
def test_a_hostile_configuration_is_read_in_bounded_time() -> None:
    started = time.process_time()
    for text in (
        '"' + "\\" * 300_000,
        "a" * 300_000,
        "$" * 300_000,
        "{" * 300_000,
        '"$"' * 100_000,
        "> " * 100_000,
    ):
        try:
            config = GrubConfig.parse(text)
        except FormatError:
            continue
        config.default_entry({"saved_entry": ">" * 100_000})
        [word.expand({}) for command in config.commands for word in command.words]
    assert time.process_time() - started < 20
