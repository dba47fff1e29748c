"""Kernel parameters: what apply writes, and that update-grub would agree."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from boot_trees import (
    ALL,
    BY_ID,
    GRUB_CFG,
    PLANNED,
    applied,
    debian,
    grub_cfg,
    lines_of,
    statuses,
    tree_of,
    written,
)
from tpu_image.catalogue.boot_loader import DEFAULTS, DROP_INS, KERNEL_INSTALL
from tpu_image.catalogue.grub_defaults_edit import DROP_IN
from tpu_image.catalogue.kernel_parameters import HUGE_PAGES, PARAMETERS
from tpu_image.catalogue.requirement import Profile
from tpu_image.formats import FormatError
from tpu_image.formats.grub_environment import SIGNATURE, EnvironmentBlock
from tpu_image.formats.kernel_cmdline import KernelCommandLine
from tpu_image.trees.base import Tree
from tpu_image.trees.memory import File, MemoryTree, Symlink

GOOD = ["pass", "pass", "pass"]


def test_a_drop_in_is_added_and_the_entries_are_edited_alone() -> None:
    overlay = applied(tree_of(debian("net.ifnames=0")))
    assert set(written(overlay)) == {DROP_IN, GRUB_CFG}
    assert overlay.read_text(DROP_IN).endswith(f'\nGRUB_CMDLINE_LINUX="${{GRUB_CMDLINE_LINUX}} {ALL}"\n')
    assert overlay.read_text(GRUB_CFG) == grub_cfg(f"net.ifnames=0 {ALL} quiet", f"net.ifnames=0 {ALL}")
    assert not applied(overlay).written


def test_what_holds_already_writes_nothing() -> None:
    assert not applied(tree_of(debian(ALL))).written


def test_any_order_of_requirements_ends_in_the_same_files() -> None:
    results = [written(applied(tree_of(debian()), order)) for order in permutations(PLANNED)]
    assert all(result == results[0] for result in results)


def test_each_requirement_alone_adds_its_own_token_alone() -> None:
    for requirement, parameter in zip(PLANNED, PARAMETERS, strict=True):
        overlay = applied(tree_of(debian()), [requirement])
        assert overlay.read_text(DROP_IN).endswith(f'"${{GRUB_CMDLINE_LINUX}} {parameter.token}"\n')
        assert lines_of(overlay)[0] == ["root=UUID=1", "ro", parameter.token, "quiet"]


# What stands in GRUB_CMDLINE_LINUX, and what stands there after apply, with the tokens that go into the drop-in.
REPAIRS = {
    "the recipe": (
        f"idle=poll intel_iommu=on {HUGE_PAGES},sm_on",
        f"idle=poll intel_iommu=on,sm_on {HUGE_PAGES}",
        "",
    ),
    "the recipe run twice": (
        f"idle=poll intel_iommu=on {HUGE_PAGES} {HUGE_PAGES},sm_on",
        f"idle=poll intel_iommu=on,sm_on {HUGE_PAGES}",
        "",
    ),
    "a console torn": (
        f"console=ttyS0 {HUGE_PAGES},38400n8 quiet",
        f"console=ttyS0,38400n8 {HUGE_PAGES} quiet",
        "idle=poll intel_iommu=on,sm_on",
    ),
    "a name torn": (
        f"net {HUGE_PAGES}.ifnames=0 {ALL}",
        f"net.ifnames=0 {HUGE_PAGES} {ALL}",
        "",
    ),
    "torn behind a blank": (f"quiet  {HUGE_PAGES}-x {ALL}", f"quiet -x {HUGE_PAGES} {ALL}", ""),
    "torn at the start": (f" {HUGE_PAGES}-x {ALL}", f"-x {HUGE_PAGES} {ALL}", ""),
    "written by hand behind something else": (
        f"idle=poll quiet {HUGE_PAGES},sm_on",
        f"idle=poll quiet {HUGE_PAGES}",
        "intel_iommu=on,sm_on",
    ),
    "a conflict": ("idle=halt a", "idle=poll a", f"intel_iommu=on,sm_on {HUGE_PAGES}"),
    "two conflicts": (f"idle=halt {ALL} idle=nomwait", f"idle=poll {ALL} idle=poll", ""),
    "an option lacking": (
        f"idle=poll intel_iommu=on {HUGE_PAGES}",
        f"idle=poll intel_iommu=on,sm_on {HUGE_PAGES}",
        "",
    ),
    "an option turned off": (
        f"idle=poll intel_iommu=off,igfx_off {HUGE_PAGES}",
        f"idle=poll intel_iommu=on,igfx_off,sm_on {HUGE_PAGES}",
        "",
    ),
    "options over two tokens": (
        f"idle=poll intel_iommu=igfx_off intel_iommu=off {HUGE_PAGES}",
        f"idle=poll intel_iommu=igfx_off intel_iommu=on,sm_on {HUGE_PAGES}",
        "",
    ),
    "names lost": ("=poll None=on,sm_on =always", ALL, ""),
    "no value": (
        "idle= intel_iommu=None transparent_hugepage",
        ALL,
        "",
    ),
    "a comma for a blank": (
        f"idle=poll,intel_iommu=on,sm_on {HUGE_PAGES}",
        ALL,
        "",
    ),
    "for init": (f"quiet -- {ALL}", f"quiet {ALL} -- {ALL}", ""),
    "behind the end of a command": ("a=b;c quiet", f"{ALL} a=b;c quiet", ""),
    "in front of a blank line": ("a\n", f"a {ALL}\n", ""),
    "behind the end of a line": ("a\n  b", f"a {ALL}\n  b", ""),
}


@pytest.mark.parametrize(("before", "after", "added"), REPAIRS.values(), ids=REPAIRS)
def test_tokens_are_put_right_where_they_stand(before: str, after: str, added: str) -> None:
    files = debian(before)
    overlay = applied(tree_of(files))
    assert overlay.read_text(DEFAULTS) == files[DEFAULTS].replace(f'LINUX="{before}"', f'LINUX="{after}"')
    assert (overlay.read_text_if_present(DROP_IN) or "").endswith(f'_LINUX}} {added}"\n' if added else "")
    assert overlay.exists(DROP_IN) == bool(added)
    linux = " ".join([after, *added.split()])
    assert lines_of(overlay) == lines_of(tree_of({GRUB_CFG: grub_cfg(f"{linux} quiet", linux)}))
    assert statuses(overlay) == GOOD
    assert not applied(overlay).written


RECIPE = r"""
kernel_cmdline="idle=poll"
kernel_cmdline="${kernel_cmdline} intel_iommu=on,sm_on";
sed -i "s/GRUB_CMDLINE_LINUX=\"\"/GRUB_CMDLINE_LINUX=\"${kernel_cmdline}\"/" "$0"
sed -i -r 's/GRUB_CMDLINE_LINUX="[a-zA-Z0-9_= ]*/& transparent_hugepage=always/' "$0"
"""

# The value before the document's recipe, the verdicts after it, and a token that they name.
BY_RECIPE = {
    "empty": ("", ["pass", "fail", "fail"], f"{HUGE_PAGES},sm_on"),
    "a serial console": ("console=ttyS0,38400n8", ["fail", "fail", "fail"], f"{HUGE_PAGES},38400n8"),
    "a dotted name": ("net.ifnames=0 biosdevname=0", ["fail", "fail", "fail"], f"{HUGE_PAGES}.ifnames=0"),
    "a path": ("root=/dev/sda1 quiet", ["fail", "fail", "fail"], f"{HUGE_PAGES}/dev/sda1"),
    "plain words": ("quiet splash", ["fail", "fail", "pass"], ""),
    "an option behind a blank": ("quiet -x", ["fail", "fail", "fail"], f"{HUGE_PAGES}-x"),
    "an escaped quote": (r"dyndbg=\"file x +p\"", ["fail", "fail", "fail"], ""),
    "a reference": ("${GRUB_CMDLINE_LINUX_DEFAULT} a", ["fail", "fail", "fail"], f"{HUGE_PAGES}quiet"),
}


@pytest.mark.parametrize(("value", "expected", "mangled"), BY_RECIPE.values(), ids=BY_RECIPE)
@pytest.mark.parametrize("runs", [1, 2])
def test_the_documents_recipe_is_reported_with_its_fault_and_repaired(
    value: str, expected: list[str], mangled: str, runs: int, tmp_path: Path
) -> None:
    path = tmp_path / "grub"
    path.write_text(
        f'#GRUB_CMDLINE_LINUX=""\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX="{value}"\n'
    )
    before = made_by_update_grub({DEFAULTS: path.read_text()}, tmp_path)
    for _ in range(runs):
        subprocess.run(["bash", "-c", RECIPE, path], check=True)
    files = {DEFAULTS: path.read_text()}
    torn = made_by_update_grub(files, tmp_path)
    tree = tree_of(files | {GRUB_CFG: grub_cfg(*torn)})

    # A second run adds a second token, which is whole: huge pages work, and the damage to the rest stays.
    assert statuses(tree) == (expected if runs == 1 else [*expected[:2], expected[2].replace("fail", "warn")])
    assert mangled in BY_ID["kernel.thp"].inspect(tree, Profile()).message

    overlay = applied(tree)
    assert statuses(overlay) == GOOD
    assert not applied(overlay).written
    after = made_by_update_grub(defaults_of(overlay), tmp_path)
    assert lines_of(overlay) == lines_of(tree_of({GRUB_CFG: grub_cfg(*after)}))
    assert [without_ours(line) for line in after] == [without_ours(line) for line in before]
    assert "#GRUB_CMDLINE_LINUX=" in overlay.read_text(DEFAULTS)


def defaults_of(tree: Tree) -> dict[str, str]:
    """The files that grub-mkconfig reads."""
    paths = [path for path in (DEFAULTS, *tree.files(DROP_INS, "*.cfg")) if tree.is_file(path)]
    return {path: tree.read_text(path) for path in paths}


def made_by_update_grub(files: Mapping[str, str], folder: Path) -> tuple[str, str | None]:
    """What a real bash, reading the files as grub-mkconfig does, has for ordinary and recovery entries."""
    script = ["set -e"]
    for number, path in enumerate(sorted(files, key=lambda p: (p != DEFAULTS, p))):
        copy = folder / str(number)
        copy.write_text(files[path])
        script.append(f". {copy}")
    names = ("GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT", "GRUB_DISABLE_RECOVERY")
    script.append("printf '%s\\0%s\\0%s' " + " ".join(f'"${name}"' for name in names))
    done = subprocess.run(
        ["env", "-i", "bash", "-c", "\n".join(script)], capture_output=True, check=True, text=True
    )
    linux, default, no_recovery = done.stdout.split("\0")
    return f"{linux} {default}", None if no_recovery else linux


def without_ours(line: str | None) -> list[str]:
    """The tokens of a line that are none of the parameters, with the recipe's insertions taken out."""
    names = {parameter.name for parameter in PARAMETERS}
    tokens = KernelCommandLine.parse((line or "").replace(f" {HUGE_PAGES}", "")).tokens
    return [
        token.text
        for token in tokens
        if token.name not in names and not token.text.startswith(("=", "None="))
    ]


user_tokens = st.sampled_from(
    [
        "quiet",
        "splash",
        "console=tty1",
        "console=ttyS0,38400n8",
        "net.ifnames=0",
        "$vt_handoff",
        "ro",
        "None",
        "a=b;c",
    ]
)
our_tokens = st.sampled_from(
    [
        "idle=poll",
        "idle=halt",
        "idle=poll,x",
        "idle=",
        "=poll",
        "None=poll",
        "intel_iommu=on",
        "intel_iommu=off",
        "intel_iommu=on,sm_on",
        "intel-iommu=igfx_off",
        "=on,sm_on",
        "transparent_hugepage=always",
        "transparent_hugepage=madvise",
        "transparent-hugepage=never",
        "transparent_hugepage=",
        f"intel_iommu=on {HUGE_PAGES},sm_on",
        f"console=ttyS0 {HUGE_PAGES},38400n8",
    ]
)
token_lists = st.lists(st.one_of(user_tokens, our_tokens), max_size=5).map(" ".join)
variables = st.sampled_from(["GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT"])


@st.composite
def assignments(draw: st.DrawFn) -> str:
    name = draw(variables)
    text = draw(token_lists)
    double = text.replace("$", "\\$")
    bare = re.sub(r"([ $;])", r"\\\1", text)
    other = draw(variables)
    return draw(
        st.sampled_from(
            [
                f'{name}="{double}"',
                f"{name}='{text}'",
                f"{name}={bare}",
                f'export {name}="{double}"',
                f'{name}="${{{other}}} {double}"',
                f'{name}="{double} ${other}"',
                f'{name}+=" {double}"',
                f"EXTRA='{text}'\n{name}=\"$EXTRA\"  # EXTRA",
                f'# {name}="{double}"',
                f"if true; then GRUB_TIMEOUT=1; fi\n{name}='{text}'",
                "GRUB_DISABLE_RECOVERY=true",
            ]
        )
    )


drop_in_names = st.sampled_from(
    ["10-a.cfg", "50-cloudimg.cfg", "99-tpu-image.cfg", "99-z.cfg", "zz.cfg", "not.txt"]
)
defaults_files = st.builds(
    lambda main, more: {DEFAULTS: main} | {f"{DROP_INS}/{name}": text for name, text in more.items()},
    st.lists(assignments(), max_size=3).map("\n".join),
    st.dictionaries(
        drop_in_names, st.lists(assignments(), min_size=1, max_size=2).map("\n".join), max_size=3
    ),
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files=defaults_files, order=st.permutations(PLANNED))
def test_whatever_stands_there_apply_makes_it_right_once(
    files: dict[str, str], order: list[object], tmp_path: Path
) -> None:
    read = {path: text for path, text in files.items() if not path.endswith("txt")}
    before = made_by_update_grub(read, tmp_path)
    tree = tree_of(files | {GRUB_CFG: grub_cfg(*before)})

    overlay = applied(tree, [requirement for requirement in PLANNED if requirement in order])

    assert statuses(overlay) == GOOD
    assert not applied(overlay).written
    after = made_by_update_grub(defaults_of(overlay), tmp_path)
    assert [without_ours(line) for line in after] == [without_ours(line) for line in before]
    assert lines_of(overlay) == lines_of(tree_of({GRUB_CFG: grub_cfg(*after)}))
    for path, text in files.items():
        comments = re.findall(r"^#.*", text, re.MULTILINE)
        assert re.findall(r"^#.*", overlay.read_text(path), re.MULTILINE) == comments


def test_a_drop_in_sorts_behind_the_last_file_that_sets_the_variable() -> None:
    late = {
        f"{DROP_INS}/zz.cfg": 'GRUB_CMDLINE_LINUX="nomodeset"\n',
        f"{DROP_INS}/zzz.cfg": "GRUB_TIMEOUT=1\n",
    }
    files = debian("nomodeset", **late)
    overlay = applied(tree_of(files))
    assert f"{DROP_INS}/zz.tpu-image.cfg" in written(overlay)
    assert DROP_IN not in written(overlay)
    assert statuses(overlay) == GOOD
    assert not applied(overlay).written


def test_a_later_file_that_sets_another_variable_does_not_matter() -> None:
    late = {
        f"{DROP_INS}/kdump.cfg": 'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT crashkernel=1G"\n'
    }
    overlay = applied(tree_of(debian(**late)))
    assert set(written(overlay)) == {DROP_IN, GRUB_CFG}
    assert statuses(overlay) == GOOD


def test_an_old_drop_in_that_a_later_file_overrides_is_followed_by_a_new_one() -> None:
    overlay = applied(tree_of(debian()))
    later = MemoryTree(
        {path: File(text.encode()) for path, text in (debian() | written(overlay)).items()}
        | {f"{DROP_INS}/zz.cfg": File(b"GRUB_CMDLINE_LINUX=x\n")}
    )
    assert set(written(applied(later))) == {f"{DROP_INS}/zz.tpu-image.cfg"}
    assert statuses(applied(later)) == GOOD


def test_a_drop_in_that_somebody_changed_keeps_the_change() -> None:
    text = written(applied(tree_of(debian())))[DROP_IN]
    changed = text.replace("idle=poll ", "") + "# mine\nGRUB_TIMEOUT=3\n"
    overlay = applied(tree_of(debian(**{DROP_IN: changed})))
    assert statuses(overlay) == GOOD
    assert overlay.read_text(DROP_IN).endswith("# mine\nGRUB_TIMEOUT=3\n")


def test_another_file_of_the_same_name_is_left_alone() -> None:
    files = debian("mine", **{DROP_IN: "GRUB_TIMEOUT=3\n"})
    overlay = applied(tree_of(files))
    assert overlay.read_text(DROP_IN) == "GRUB_TIMEOUT=3\n"
    assert f"{DROP_INS}/99-tpu-image.tpu-image.cfg" in written(overlay)
    assert not applied(overlay).written


def test_where_grub_mkconfig_reads_no_drop_ins_its_own_file_is_edited() -> None:
    files = debian("a") | {"/usr/sbin/grub2-mkconfig": "#!/bin/sh\n. /etc/default/grub\n"}
    overlay = applied(tree_of(files))
    assert overlay.read_text(DEFAULTS) == files[DEFAULTS].replace('LINUX="a"', f'LINUX="a {ALL}"')
    assert set(written(overlay)) == {DEFAULTS, GRUB_CFG}
    del files[DEFAULTS]
    overlay = applied(tree_of(files))
    assert overlay.read_text(DEFAULTS).startswith('GRUB_CMDLINE_LINUX="${GRUB_CMDLINE_LINUX} idle=poll')
    assert statuses(overlay) == GOOD


def test_appending_that_dash_does_not_know_is_reported_and_spelt_out(tmp_path: Path) -> None:
    files = debian(ALL)
    files[DEFAULTS] += 'GRUB_CMDLINE_LINUX+=" a=b"\n'
    files[GRUB_CFG] = grub_cfg(f"{ALL} a=b quiet", f"{ALL} a=b")
    nodes = {path: File(text.encode()) for path, text in files.items()}
    tree = MemoryTree(
        nodes | {"/usr/bin/dash": File(b""), "/bin": Symlink("usr/bin"), "/usr/bin/sh": Symlink("dash")}
    )
    assert statuses(tree) == ["warn", "warn", "warn"]
    overlay = applied(tree)
    assert overlay.read_text(DEFAULTS).endswith('\nGRUB_CMDLINE_LINUX="${GRUB_CMDLINE_LINUX}"" a=b"\n')
    assert statuses(overlay) == GOOD
    path = tmp_path / "grub"
    path.write_text(overlay.read_text(DEFAULTS))
    shell = subprocess.run(
        ["dash", "-c", f'. {path}; echo "$GRUB_CMDLINE_LINUX"'], capture_output=True, text=True
    )
    assert shell.stdout == f"{ALL} a=b\n"


LINES = {
    "a stale line": ("ro  quiet", f"ro  {ALL} quiet"),
    "words of another time": ("ro foo", f"ro foo {ALL}"),
    "a subvolume": ("ro rootflags=subvol=@ quiet", f"ro rootflags=subvol=@ {ALL} quiet"),
    "another init": ("ro  quiet init=/lib/sysvinit/init", f"ro  {ALL} quiet init=/lib/sysvinit/init"),
    "without an initrd": ("ro  quiet panic=-1", f"ro  {ALL} quiet panic=-1"),
    "a variable": ("ro  quiet $vt_handoff", f"ro  {ALL} quiet $vt_handoff"),
    "nothing behind": ("ro", f"ro {ALL}"),
    "conflicts": ("ro idle=halt quiet", f"ro {ALL} quiet"),
    "for init": ("ro -- quiet", f"ro {ALL} -- quiet"),
}


@pytest.mark.parametrize(("before", "after"), LINES.values(), ids=LINES)
def test_a_line_is_written_as_update_grub_would(before: str, after: str) -> None:
    text = "menuentry 'Linux' {{\n\tlinux /vmlinuz root=UUID=1 {}\n\tinitrd /initrd.img\n}}\n"
    overlay = applied(
        tree_of({DEFAULTS: 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\n', GRUB_CFG: text.format(before)})
    )
    assert overlay.read_text(GRUB_CFG) == text.format(after)
    assert statuses(overlay) == GOOD


def test_a_custom_entry_and_a_second_kernel_are_edited_too() -> None:
    more = "menuentry 'Mine' { linux /vmlinuz root=LABEL=x idle=halt; initrd /i; }\n"
    files = debian(**{"/boot/grub/custom.cfg": more})
    files[GRUB_CFG] += (
        "menuentry 'Old' {\n  linux /boot/vmlinuz-5 root=UUID=1 ro transparent_hugepage=never\n}\n"
    )
    overlay = applied(tree_of(files))
    assert statuses(overlay) == GOOD
    assert overlay.read_text("/boot/grub/custom.cfg").startswith(
        "menuentry 'Mine' { linux /vmlinuz root=LABEL=x idle=poll"
    )
    assert "memtest86+.bin\n" in overlay.read_text(GRUB_CFG)


ENTRY = "/boot/loader/entries/a.conf"
ENTRY_TEXT = "title Fedora\nversion 6.8\nlinux /vmlinuz\noptions {}\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("root=UUID=1 ro rhgb quiet", f"root=UUID=1 ro rhgb quiet {ALL}"),
        ("root=UUID=1 ro idle=halt", f"root=UUID=1 ro idle=poll {ALL.replace('idle=poll ', '')}"),
        (f"intel_iommu=on {HUGE_PAGES},sm_on x", f"intel_iommu=on,sm_on {HUGE_PAGES} x idle=poll"),
        ("", ALL),
    ],
)
def test_an_entry_of_the_boot_loader_specification_is_edited_in_place(before: str, after: str) -> None:
    tree = tree_of({ENTRY: ENTRY_TEXT.format(before)})
    overlay = applied(tree)
    assert overlay.read_text(ENTRY) == ENTRY_TEXT.format(after)
    assert set(written(overlay)) == {ENTRY}
    assert statuses(overlay) == GOOD
    assert not applied(overlay).written


def fedora(environment: str, options: str = "$kernelopts") -> dict[str, str]:
    block = SIGNATURE + environment
    return {
        DEFAULTS: 'GRUB_CMDLINE_LINUX="rhgb quiet"\nGRUB_ENABLE_BLSCFG=true\n',
        "/boot/grub2/grub.cfg": 'set default="${saved_entry}"\ninsmod blscfg\nblscfg\n',
        "/boot/grub2/grubenv": block + "#" * (1024 - len(block)),
        ENTRY: ENTRY_TEXT.format(options),
        "/boot/loader/entries/b.conf": ENTRY_TEXT.format(f"{ALL} ro"),
    }


def test_kernelopts_in_the_environment_block_is_edited() -> None:
    overlay = applied(tree_of(fedora("kernelopts=root=UUID=1 ro rhgb quiet \nsaved_entry=b\n")))
    block = EnvironmentBlock.parse(overlay.read_text("/boot/grub2/grubenv"))
    assert block.get("kernelopts") == f"root=UUID=1 ro rhgb quiet {ALL} "
    assert len(block.text) == 1024
    assert ENTRY not in written(overlay)
    assert statuses(overlay) == GOOD
    evidence = BY_ID["kernel.idle"].inspect(overlay, Profile()).evidence
    assert evidence[0].path == "/boot/loader/entries/b.conf"


@pytest.mark.parametrize("environment", ["", "kernelopts=" + "x" * 980 + "\n"])
def test_an_entry_gets_the_parameters_itself_where_the_block_cannot_hold_them(environment: str) -> None:
    overlay = applied(tree_of(fedora(environment)))
    assert f"options $kernelopts {ALL}\n" in overlay.read_text(ENTRY)
    assert statuses(overlay) == GOOD


def test_what_kernel_install_writes_is_kept_too() -> None:
    tree = tree_of(debian(ALL, **{KERNEL_INSTALL: "root=UUID=1 ro quiet\n"}))
    assert statuses(tree) == ["fail", "fail", "fail"]
    overlay = applied(tree)
    assert written(overlay) == {KERNEL_INSTALL: f"root=UUID=1 ro {ALL} quiet\n"}
    assert statuses(overlay) == GOOD


def test_the_mode_and_owner_of_grub_cfg_are_kept() -> None:
    nodes = {path: File(text.encode()) for path, text in debian().items()}
    nodes[GRUB_CFG] = File(nodes[GRUB_CFG].content, 0o444, 1, 2)
    node = applied(MemoryTree(nodes)).written[GRUB_CFG]
    assert isinstance(node, File)
    assert (node.mode, node.uid, node.gid) == (0o444, 1, 2)


noise = st.text(alphabet="idle=pol,GRUB_CMDLINE_LINUX\"'$(){}`\\#;&| \n\t\udc80", max_size=12)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_files_give_a_verdict_or_an_error_and_apply_settles(data: st.DataObject) -> None:
    files = debian("a", "$(cat x)", **{KERNEL_INSTALL: "ro idle=halt\n"}) | fedora(
        "kernelopts=root=UUID=1 ro\n"
    )
    for path in files:
        at = data.draw(st.integers(0, len(files[path])))
        end = at + data.draw(st.integers(0, 3))
        files[path] = files[path][:at] + data.draw(noise) + files[path][end:]
    tree = MemoryTree({path: File(text.encode("utf-8", "surrogateescape")) for path, text in files.items()})
    try:
        before = statuses(tree)
        overlay = applied(tree)
        after = statuses(overlay)
    except FormatError:
        return
    assert after == GOOD or "pass" not in before
    assert not written(applied(overlay))
