"""Kernel parameters: what check says of boot files and of running kernels."""

from __future__ import annotations

import pytest

from boot_trees import (
    ALL,
    BY_ID,
    GRUB_CFG,
    applied,
    debian,
    grub_cfg,
    shown,
    statuses,
    tree_of,
    verdicts,
    written,
)
from tpu_image.catalogue import hardware
from tpu_image.catalogue.boot_loader import DEFAULTS, DROP_INS
from tpu_image.catalogue.grub_defaults_edit import DROP_IN
from tpu_image.catalogue.kernel_cmdline import REQUIREMENTS
from tpu_image.catalogue.requirement import Profile, Status, Verdict
from tpu_image.formats import FormatError
from tpu_image.formats.grub_environment import SIGNATURE
from tpu_image.trees.memory import File, MemoryTree

V6E = Profile(generations=(hardware.generation("v6e"),))

STATES = {
    "nothing": ("", "quiet", ["fail", "fail", "fail"]),
    "everything": (ALL, "quiet", ["pass", "pass", "pass"]),
    "twice the same": (f"{ALL} {ALL}", "quiet", ["pass", "pass", "pass"]),
    "spelt otherwise": (
        "intel_iommu=sm_on intel-iommu=on idle=poll transparent-hugepage=always",
        "",
        ["pass", "pass", "pass"],
    ),
    "in the defaults of ordinary entries alone": ("", ALL, ["fail", "fail", "fail"]),
    "without scalable mode": (
        "idle=poll intel_iommu=on transparent_hugepage=always",
        "",
        ["pass", "fail", "pass"],
    ),
    "turned off later": (
        ALL,
        "idle=halt intel_iommu=off transparent_hugepage=never",
        ["fail", "fail", "fail"],
    ),
    "turned on later": ("intel_iommu=off", ALL, ["fail", "fail", "fail"]),
    "another option beside": (f"intel_iommu=igfx_off,on,sm_on {ALL}", "", ["pass", "pass", "pass"]),
    "off and on again": (f"intel_iommu=on,off {ALL}", "", ["pass", "pass", "pass"]),
    "the recipe": (
        "idle=poll intel_iommu=on transparent_hugepage=always,sm_on",
        "",
        ["pass", "fail", "fail"],
    ),
    "mangled beside the right one": (
        f"{ALL} transparent_hugepage=always,sm_on idle=None",
        "",
        ["warn", "pass", "warn"],
    ),
    "behind two dashes": (f"-- {ALL}", "", ["fail", "fail", "fail"]),
    "a template without its names": ("=poll =on,sm_on =always", "", ["fail", "fail", "fail"]),
}


@pytest.mark.parametrize(("linux", "default", "expected"), STATES.values(), ids=STATES)
def test_what_the_machine_would_do_decides(linux: str, default: str, expected: list[str]) -> None:
    assert statuses(tree_of(debian(linux, default))) == expected


def test_scalable_mode_is_a_warning_where_no_generation_needs_it() -> None:
    tree = tree_of(debian("idle=poll intel_iommu=on transparent_hugepage=always"))
    verdict = BY_ID["kernel.iommu"].inspect(tree, V6E)
    assert verdict.status is Status.WARN
    assert "sm_on" in verdict.message
    assert statuses(applied(tree, profile=V6E)) == ["pass", "pass", "pass"]


NAMED = {
    "kernel.thp": (
        "idle=poll intel_iommu=on transparent_hugepage=always,sm_on",
        "transparent_hugepage=always,sm_on",
    ),
    "kernel.iommu": ("idle=poll intel_iommu=on transparent_hugepage=always,sm_on", "sm_on is missing"),
    "kernel.idle": ("None=poll", "None=poll is not understood"),
}


@pytest.mark.parametrize(("requirement", "state"), NAMED.items(), ids=NAMED)
def test_a_mangled_token_is_named_with_file_and_line(requirement: str, state: tuple[str, str]) -> None:
    linux, mention = state
    verdict = BY_ID[requirement].inspect(tree_of(debian(linux)), Profile())
    assert mention in verdict.message
    places = {(evidence.path, evidence.line) for evidence in verdict.evidence}
    assert {(GRUB_CFG, 3), (GRUB_CFG, 7), (GRUB_CFG, 10), (DEFAULTS, 3)} == places


def test_a_value_that_the_kernel_no_longer_knows_decides_nothing() -> None:
    verdict = BY_ID["kernel.idle"].inspect(tree_of(debian(f"{ALL} idle=mwait")), Profile())
    assert (verdict.status, "idle=mwait is not understood" in verdict.message) == (Status.WARN, True)


@pytest.mark.parametrize("mangled", ["=poll", "None", "idle=poll,x", "idle=", "idle=None", "None=poll"])
def test_every_kind_of_damage_to_a_value_is_named(mangled: str) -> None:
    verdict = BY_ID["kernel.idle"].inspect(tree_of(debian(mangled)), Profile())
    assert verdict.status is Status.FAIL
    assert f"{mangled} is not understood by the kernel" in verdict.message


def test_the_entry_that_boots_is_named() -> None:
    files = debian(ALL)
    files[GRUB_CFG] = files[GRUB_CFG].replace('default="0"', 'default="${saved_entry}"')
    block = SIGNATURE + "saved_entry=gnulinux-advanced-1>gnulinux-6.1-advanced-1\n"
    files["/boot/grub/grubenv"] = block + "#" * (1024 - len(block))
    found = shown(BY_ID["kernel.idle"].inspect(tree_of(files), Profile()))
    assert f"{GRUB_CFG}:7 entry “Advanced>Debian, with Linux 6.1”, which boots by default" in found


def test_a_conflict_is_shown_where_it_stands() -> None:
    files = debian(ALL, **{f"{DROP_INS}/50-cloud.cfg": '\nGRUB_CMDLINE_LINUX_DEFAULT="x idle=halt"\n'})
    found = shown(BY_ID["kernel.idle"].inspect(tree_of(files), Profile()))
    assert "idle=halt decides" in found
    assert f"{DROP_INS}/50-cloud.cfg:2" in found


def test_what_grub_could_not_read_is_an_error_that_names_the_file() -> None:
    tree = tree_of(debian("a='b"))
    with pytest.raises(FormatError, match=f"line 3: {DEFAULTS}: update-grub will stop"):
        BY_ID["kernel.idle"].inspect(MemoryTree({DEFAULTS: File(tree.read_bytes(DEFAULTS))}), Profile())
    with pytest.raises(FormatError, match=f"{GRUB_CFG}: a ' is not closed"):
        BY_ID["kernel.idle"].inspect(tree, Profile())


def test_a_known_end_decides_behind_an_unknown_beginning() -> None:
    files = debian("$(cat /etc/parameters) " + ALL)
    files[GRUB_CFG] = grub_cfg(ALL, ALL)
    assert statuses(tree_of(files)) == ["pass", "pass", "pass"]
    files[DEFAULTS] = files[DEFAULTS].replace(f" {ALL}", "")
    assert statuses(tree_of(files)) == ["unknown", "unknown", "unknown"]
    assert f"{DEFAULTS}:3" in shown(verdicts(tree_of(files))["kernel.thp"])
    assert statuses(applied(tree_of(files))) == ["pass", "pass", "pass"]


def test_an_unknown_end_is_settled_by_a_drop_in() -> None:
    files = debian(ALL, "$(cat /etc/parameters)")
    files[GRUB_CFG] = grub_cfg(ALL, ALL)
    tree = tree_of(files)
    assert statuses(tree) == ["unknown", "unknown", "unknown"]
    overlay = applied(tree)
    assert statuses(overlay) == ["pass", "pass", "pass"]
    assert overlay.read_text(DROP_IN).endswith(
        f'GRUB_CMDLINE_LINUX_DEFAULT="${{GRUB_CMDLINE_LINUX_DEFAULT}} {ALL}"\n'
    )


def test_no_entry_yet_is_a_warning_where_the_defaults_are_right() -> None:
    files = debian()
    del files[GRUB_CFG]
    overlay = applied(tree_of(files))
    assert statuses(overlay) == ["warn", "warn", "warn"]
    assert "update-grub will write it" in verdicts(overlay)["kernel.thp"].message
    assert statuses(tree_of(files)) == ["fail", "fail", "fail"]


def test_an_empty_root_gets_the_drop_in() -> None:
    overlay = applied(MemoryTree())
    assert list(written(overlay)) == [DROP_IN]
    assert statuses(overlay) == ["warn", "warn", "warn"]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/boot/efi/EFI/Linux/a.efi", "a unified kernel image"),
        ("/boot/efi/loader/loader.conf", "systemd-boot"),
        ("/boot/extlinux/extlinux.conf", "extlinux"),
    ],
)
def test_another_boot_loader_is_unknown_by_name(path: str, name: str) -> None:
    tree = tree_of({path: ""})
    verdict = BY_ID["kernel.idle"].inspect(tree, Profile())
    assert verdict.status is Status.UNKNOWN
    assert name in verdict.message
    assert not applied(tree).written


CMDLINE = "/proc/cmdline"
ENABLED = "/sys/kernel/mm/transparent_hugepage/enabled"


def running(cmdline: str, enabled: str) -> dict[str, Verdict]:
    tree = tree_of({CMDLINE: f"BOOT_IMAGE=/vmlinuz root=UUID=1 ro {cmdline}\n", ENABLED: f"{enabled}\n"})
    return {r.id: r.observe(tree, Profile()) for r in REQUIREMENTS if r.live}


RUNNING = {
    "as it should": (ALL, "[always] madvise never", ["pass", "pass"]),
    "without any": ("quiet", "always [madvise] never", ["fail", "fail"]),
    "always by default alone": ("idle=poll intel_iommu=on,sm_on", "[always] madvise never", ["fail", "fail"]),
    "by the recipe": (
        "idle=poll intel_iommu=on transparent_hugepage=always,sm_on",
        "[always] madvise never",
        ["fail", "fail"],
    ),
    "changed after the boot": (ALL, "always madvise [never]", ["pass", "fail"]),
    "damaged beside": (f"{ALL} idle=None", "[always] madvise never", ["warn", "pass"]),
}


@pytest.mark.parametrize(("cmdline", "enabled", "expected"), RUNNING.values(), ids=RUNNING)
def test_the_running_kernel_is_judged(cmdline: str, enabled: str, expected: list[str]) -> None:
    assert [verdict.status.value for verdict in running(cmdline, enabled).values()] == expected


def test_the_running_kernel_names_what_it_lacks() -> None:
    message = running("idle=poll intel_iommu=on transparent_hugepage=always,sm_on", "x")[
        "machine.kernel"
    ].message
    assert "sm_on is missing" in message
    assert "transparent_hugepage=always,sm_on is not understood" in message
    assert "idle" not in message


def test_a_machine_that_does_not_show_its_kernel_is_unknown() -> None:
    for requirement in REQUIREMENTS:
        if requirement.live:
            assert requirement.observe(MemoryTree(), Profile()).status is Status.UNKNOWN
