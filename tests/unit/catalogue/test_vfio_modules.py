"""The kernels' modules, and unsafe interrupts."""

from __future__ import annotations

import pytest

import vfio_recipe
from tpu_image.catalogue import vfio
from tpu_image.catalogue.requirement import Profile, Status, Verdict
from tpu_image.catalogue.vfio_modules import (
    MODPROBE_FILE,
    MODULES_LOAD_FILE,
    UnsafeInterrupts,
    VfioModules,
    loaded_at_boot,
)
from tpu_image.trees.memory import File
from tpu_image.trees.overlay import Overlay
from vfio_trees import KERNEL, Changes, image, script

LISTS = f"/usr/lib/modules/{KERNEL}"
LOADED = {"/etc/modules-load.d/a.conf": "vfio-pci\nvfio_iommu_type1\n"}
OPTION = "options vfio_iommu_type1 allow_unsafe_interrupts="
ENTRY = "linux /vmlinuz root=/dev/sda1 vfio_iommu_type1.allow_unsafe_interrupts="


def modules(*changes: Changes) -> Verdict:
    return VfioModules().inspect(image(LOADED, *changes), Profile())


def interrupts(*changes: Changes) -> Verdict:
    return UnsafeInterrupts().inspect(image(*changes), Profile())


def files(overlay: Overlay) -> list[str]:
    return [path for path, node in overlay.written.items() if isinstance(node, File)]


@pytest.mark.parametrize(
    "change",
    [
        {},
        {
            f"{LISTS}/modules.dep": "k/vfio-pci.ko.zst:\n",
            f"{LISTS}/modules.builtin": "k/vfio_iommu_type1.ko\n",
        },
        {"/usr/lib/modules/leftover/extra.ko": "no list, no kernel"},
        {"/usr/lib/modprobe.d/a.conf": "blacklist vfio_pci\n", "/etc/modprobe.d/a.conf": "# masks it\n"},
    ],
)
def test_kernels_with_both_modules_pass(change: Changes) -> None:
    assert modules(change).status is Status.PASS


@pytest.mark.parametrize(
    ("change", "mention"),
    [
        ({f"{LISTS}/modules.dep": "k/vfio-pci.ko:\n"}, f"no vfio_iommu_type1 for kernel {KERNEL}"),
        (
            {"/usr/lib/modules/6.8.0-cloud/modules.dep": "k/x.ko:\n"},
            "no vfio-pci and no vfio_iommu_type1 for kernel 6.8.0-cloud",
        ),
        ({"/usr/lib/modules/6.9.0/x": "", "/boot/vmlinuz-6.9.0": ""}, "kernel 6.9.0"),
        ({"/etc/modprobe.d/a.conf": "# \ninstall vfio-pci /bin/true\n"}, "a.conf"),
        ({"/etc/modprobe.d/a.conf": "install vfio_iommu_type1 /bin/false\n"}, "a.conf"),
        ({"/usr/lib/modprobe.d/a.conf": "install vfio-pci /usr/bin/true\n"}, "a.conf"),
    ],
)
def test_a_module_that_a_kernel_lacks_or_may_not_load_fails(change: Changes, mention: str) -> None:
    verdict = modules(change)
    assert verdict.status is Status.FAIL
    assert mention in verdict.message


def test_a_blacklisted_module_is_left_to_the_bind_script() -> None:
    tree = image(LOADED, {"/etc/modprobe.d/a.conf": "# \nblacklist vfio-pci\n"})
    verdict = VfioModules().inspect(tree, Profile())
    assert verdict.status is Status.WARN
    assert loaded_at_boot(tree) == set()
    (evidence,) = verdict.evidence
    assert (evidence.path, evidence.line, evidence.found) == (
        "/etc/modprobe.d/a.conf",
        2,
        "blacklist vfio_pci",
    )


def test_without_a_kernel_nothing_is_claimed() -> None:
    change = {f"{LISTS}/modules.dep": None, f"{LISTS}/modules.builtin": None}
    assert modules(change).status is Status.UNKNOWN


def test_modules_that_nothing_loads_at_boot_are_warned_about_and_applied() -> None:
    tree = image()
    assert VfioModules().inspect(tree, Profile()).status is Status.WARN
    overlay = Overlay(tree)
    VfioModules().plan(overlay, Profile())
    assert VfioModules().inspect(overlay, Profile()).status is Status.PASS
    assert files(overlay) == [MODULES_LOAD_FILE]


@pytest.mark.parametrize(
    "change",
    [
        {"/etc/modprobe.d/a.conf": OPTION + "1\n"},
        {"/etc/modprobe.d/a.conf": OPTION + "0\n" + OPTION + "Y\n"},
        {"/etc/modprobe.d/a.conf": OPTION + "0\n", "/usr/lib/modprobe.d/b.conf": OPTION + "1\n"},
        {"/etc/modprobe.d/a.conf": "options vfio-iommu-type1 allow_unsafe_interrupts\n"},
        {"/boot/grub/grub.cfg": f"menuentry x {{\n {ENTRY}1\n}}\n"},
        {
            vfio.RULES_FILE: vfio_recipe.BIND_RULES,
            "/usr/lib/udev/bind_to_vfio_pci.sh": script(vfio_recipe.BIND_SCRIPT),
        },
    ],
)
def test_unsafe_interrupts_are_set_by_option_parameter_or_script(change: Changes) -> None:
    assert interrupts(change).status is Status.PASS


@pytest.mark.parametrize(
    ("change", "mention"),
    [
        ({}, "nothing sets"),
        ({"/etc/modprobe.d/a.conf": OPTION + "1\n", "/etc/modprobe.d/b.conf": OPTION + "0\n"}, "turns"),
        ({"/etc/modprobe.d/a.cfg": OPTION + "1\n"}, "nothing sets"),
        (
            {
                "/etc/modprobe.d/a.conf": OPTION + "1\n",
                f"{LISTS}/modules.builtin": "kernel/drivers/vfio/vfio_iommu_type1.ko\n",
            },
            "built in",
        ),
        ({"/boot/grub/grub.cfg": f"{ENTRY}1\nlinux /old root=x\n"}, "nothing sets"),
        ({"/boot/grub/grub.cfg": f"{ENTRY}1 vfio_iommu_type1.allow_unsafe_interrupts=0\n"}, "nothing sets"),
        ({"/usr/lib/udev/bind_to_vfio_pci.sh": script(vfio_recipe.BIND_SCRIPT)}, "nothing sets"),
    ],
)
def test_unsafe_interrupts_that_are_not_in_effect_fail(change: Changes, mention: str) -> None:
    verdict = interrupts(change)
    assert verdict.status is Status.FAIL
    assert mention in verdict.message


@pytest.mark.parametrize("name", ["a.conf", "vfio.conf"])
def test_the_option_is_applied_behind_one_that_turns_it_off(name: str) -> None:
    overlay = Overlay(image({f"/etc/modprobe.d/{name}": OPTION + "0\n"}))
    UnsafeInterrupts().plan(overlay, Profile())
    assert UnsafeInterrupts().inspect(overlay, Profile()).status is Status.PASS
    assert len(files(overlay)) == 1


def test_an_entry_by_the_boot_loader_specification_counts() -> None:
    entry = f"linux /vmlinuz\noptions {ENTRY.partition(' root')[2]}1\n"
    assert interrupts({"/boot/loader/entries/a.conf": entry}).status is Status.PASS


def test_the_option_is_applied() -> None:
    overlay = Overlay(image())
    UnsafeInterrupts().plan(overlay, Profile())
    assert UnsafeInterrupts().inspect(overlay, Profile()).status is Status.PASS
    assert files(overlay) == [MODPROBE_FILE]


def test_other_architectures_need_no_unsafe_interrupts() -> None:
    assert UnsafeInterrupts().applies(Profile(architecture="aarch64"))
    assert not UnsafeInterrupts().applies(Profile())
