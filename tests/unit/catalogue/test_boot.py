"""Whether an image finds its own root: ``root=`` of every entry, and the stub on the EFI partition."""

from __future__ import annotations

import pytest

from boot_trees import GRUB_CFG, debian, shown, tree_of
from tpu_image.catalogue.boot import FSTAB, REQUIREMENTS
from tpu_image.catalogue.boot_loader import DROP_INS
from tpu_image.catalogue.requirement import Profile, Status, Verdict
from tpu_image.trees.overlay import Overlay

BY_ID = {requirement.id: requirement for requirement in REQUIREMENTS}
ROOT = "0b2a5f2c-5f0c-4c9e-9b8a-3f0f3a5d2c11"
OTHER = "99999999-5f0c-4c9e-9b8a-3f0f3a5d2c11"
STUB = "/boot/efi/EFI/debian/grub.cfg"
STUB_TEXT = "search.fs_uuid {} root hd0,gpt1 \nset prefix=($root)'/boot/grub'\nconfigfile $prefix/grub.cfg\n"


def judge(requirement: str, files: dict[str, str]) -> Verdict:
    tree = tree_of(files)
    overlay = Overlay(tree)
    BY_ID[requirement].plan(overlay, Profile())
    assert not overlay.written
    return BY_ID[requirement].inspect(tree, Profile())


def booting(root: str, fstab: str = "", **more: str) -> dict[str, str]:
    files = debian(**more)
    files[GRUB_CFG] = files[GRUB_CFG].replace("root=UUID=1", root)
    return files | {FSTAB: fstab}


ROOTS = {
    "a UUID": (f"root=UUID={ROOT}", "", "pass"),
    "a UUID that fstab has": (f"root=UUID={ROOT}", f'UUID="{ROOT}" / ext4 rw 0 1\n', "pass"),
    "a label": ("root=LABEL=cloudimg-rootfs", "LABEL=cloudimg-rootfs / ext4\n", "pass"),
    "a link of udev's": (f"root=/dev/disk/by-uuid/{ROOT}", f"UUID={ROOT} / ext4\n", "pass"),
    "a PARTUUID in capitals": ("root=PARTUUID=AB-01", "PARTUUID=ab-01 / ext4\n", "pass"),
    "another tag than fstab": ("root=PARTUUID=ab-01", f"UUID={ROOT} / ext4\n", "pass"),
    "another UUID than fstab": (f"root=UUID={ROOT}", f"UUID={OTHER} / ext4\n", "fail"),
    "the last root= decides": (f"root=UUID={ROOT} root=/dev/loop0", "", "fail"),
    "a loop device": ("root=/dev/loop0p1", "", "fail"),
    "a network block device": ("root=/dev/nbd0p2", "", "fail"),
    "a mapping of a loop device": ("root=/dev/mapper/loop0p1", "/dev/mapper/loop0p1 / ext4\n", "fail"),
    "a mapping that fstab does not know": ("root=/dev/mapper/vg-root", f"UUID={ROOT} / ext4\n", "fail"),
    "a logical volume": ("root=/dev/mapper/vg-root", "/dev/mapper/vg-root / ext4\n", "warn"),
    "a disk by its order": ("root=/dev/sda1", "", "warn"),
    "no root at all": ("quiet", "", "warn"),
}


@pytest.mark.parametrize(("root", "fstab", "expected"), ROOTS.values(), ids=ROOTS)
def test_entries_must_name_a_root_that_a_vm_will_have(root: str, fstab: str, expected: str) -> None:
    verdict = judge("image.root-device", booting(root, fstab))
    assert verdict.status.value == expected, shown(verdict)


def test_both_values_are_shown_where_fstab_differs() -> None:
    found = shown(judge("image.root-device", booting(f"root=UUID={ROOT}", f"\nUUID={OTHER} / ext4\n")))
    assert f"{GRUB_CFG}:3" in found
    assert f"{FSTAB}:2" in found
    assert ROOT in found
    assert OTHER in found


@pytest.mark.parametrize(
    ("root", "expected"),
    [("root=PARTUUID=aa-01", "fail"), ("root=PARTUUID=BB-02", "pass"), ("root=UUID=1", "pass")],
)
def test_a_forced_partuuid_must_be_that_of_the_entries(root: str, expected: str) -> None:
    drop_in = {f"{DROP_INS}/40-force-partuuid.cfg": "\nGRUB_FORCE_PARTUUID=bb-02\n"}
    verdict = judge("image.root-device", booting(root, **drop_in))
    assert verdict.status.value == expected
    if expected == "fail":
        assert "40-force-partuuid.cfg:2" in shown(verdict)
        assert "aa-01" in verdict.message
        assert "bb-02" in verdict.message


def test_without_entries_there_is_nothing_to_judge() -> None:
    assert judge("image.root-device", {}).status is Status.SKIP


STUBS = {
    "as grub-install writes it": (STUB_TEXT.format(ROOT), f"UUID={ROOT} / ext4\n", "pass"),
    "in another spelling": (
        f"search --no-floppy --fs-uuid --set=root {ROOT.upper()}\nconfigfile ($root)/boot/grub/grub.cfg\n",
        f"UUID={ROOT} / ext4\n",
        "pass",
    ),
    "with /boot of its own": (
        STUB_TEXT.format(OTHER),
        f"UUID={ROOT} / ext4\nUUID={OTHER} /boot ext4\n",
        "pass",
    ),
    "by a label": ("search --label BOOT --set=root\nconfigfile /grub.cfg\n", f"UUID={ROOT} / ext4\n", "pass"),
    "to another file system": (STUB_TEXT.format(OTHER), f"UUID={ROOT} / ext4\n", "fail"),
    "to another than grub.cfg searches": (STUB_TEXT.format(OTHER), "/dev/sda1 / ext4\n", "fail"),
    "a whole configuration": ("menuentry x {\n linux /vmlinuz\n}\n", "", "fail"),
    "a whole configuration without entries": ("linux /vmlinuz\nboot\n", "", "fail"),
    "empty": ("", "", "fail"),
    "torn": ("configfile 'x\n", "", "fail"),
}


@pytest.mark.parametrize(("stub", "fstab", "expected"), STUBS.values(), ids=STUBS)
def test_the_efi_partition_holds_a_stub_that_finds_the_rest(stub: str, fstab: str, expected: str) -> None:
    files = booting(f"root=UUID={ROOT}", fstab) | {STUB: stub}
    files[GRUB_CFG] = files[GRUB_CFG].replace(
        "{\n", f"{{\n\tsearch --no-floppy --fs-uuid --set=root {ROOT}\n"
    )
    verdict = judge("image.efi-stub", files)
    assert verdict.status.value == expected, shown(verdict)


def test_both_values_are_shown_where_the_stub_searches_another_file_system() -> None:
    files = booting(f"root=UUID={ROOT}", f"UUID={ROOT} / ext4\n") | {STUB: STUB_TEXT.format(OTHER)}
    found = shown(judge("image.efi-stub", files))
    assert f"{STUB}:1 {OTHER} | {ROOT}" in found
    assert f"{FSTAB}:1 {ROOT}" in found


def test_without_an_efi_partition_there_is_nothing_to_judge() -> None:
    assert judge("image.efi-stub", debian()).status is Status.SKIP
