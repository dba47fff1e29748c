"""Which kernel of an image starts in its virtual machine."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tpu_image.customise.guest_kernel import MADE_BY, guest_kernel
from tpu_image.customise.session import CustomisationError
from tpu_image.trees.memory import File, MemoryTree

GRUB = "/boot/grub/grub.cfg"


def kernel(content: bytes = b"") -> File:
    """What begins as a kernel for x86-64 does (Linux Documentation/arch/x86/boot.rst)."""
    return File(bytes(0x202) + b"HdrS" + content)


def tree_of(names: Iterable[str], **others: File) -> MemoryTree:
    nodes = {f"/boot/{name}": kernel(name.encode()) for name in names if name.startswith("vmlinu")}
    nodes |= {f"/boot/{name}": File(name.encode()) for name in names if not name.startswith("vmlinu")}
    return MemoryTree({MADE_BY: File(b"#!/bin/sh\n"), **nodes, **others})


@pytest.mark.parametrize(
    ("names", "grub", "chosen"),
    [
        (["vmlinuz-6.1", "initrd.img-6.1"], "", ("vmlinuz-6.1", "initrd.img-6.1")),
        (["vmlinuz-6.9.0", "vmlinuz-6.10.0"], "", ("vmlinuz-6.10.0", "")),
        (
            ["vmlinuz-6.9.0", "vmlinuz-6.10.0", "initrd.img-6.9.0"],
            "6.9.0",
            ("vmlinuz-6.9.0", "initrd.img-6.9.0"),
        ),
        (
            ["vmlinuz.old", "vmlinuz-6.9.0", "vmlinuz-6.9.0.dpkg-new", "initrd.img-6.9.0"],
            "",
            ("vmlinuz-6.9.0", "initrd.img-6.9.0"),
        ),
        (["vmlinuz-6.9.0"], "5.0", ("vmlinuz-6.9.0", "")),
        (["vmlinuz-6.9.0"], "{", ("vmlinuz-6.9.0", "")),
    ],
    ids=[
        "the only one",
        "the newest",
        "what GRUB boots",
        "what has an initramfs",
        "GRUB's is gone",
        "GRUB's file is torn",
    ],
)
def test_what_boots_is_taken_with_its_initramfs(names: list[str], grub: str, chosen: tuple[str, str]) -> None:
    tree = tree_of(names)
    if grub:
        menu = (
            f"menuentry 'x' {{\n linux /boot/vmlinuz-{grub} root=/dev/sda1\n}}\n"
            if grub != "{"
            else "menuentry 'x' {"
        )
        tree.put(GRUB, File(menu.encode()))
    found = guest_kernel(tree)
    assert found.path == f"/boot/{chosen[0]}"
    assert (found.kernel, found.initramfs) == (kernel(chosen[0].encode()).content, chosen[1].encode())


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (MemoryTree(), "the image has no kernel in /boot"),
        (tree_of(["config-6.1"]), "the image has no kernel in /boot"),
        (
            MemoryTree({"/boot/vmlinuz-6.1": File(b"MZ" + bytes(600))}),
            "/boot/vmlinuz-6.1 is no kernel for x86-64",
        ),
        (MemoryTree({"/boot/vmlinuz-6.1": File(b"")}), "/boot/vmlinuz-6.1 is no kernel for x86-64"),
    ],
    ids=["nothing", "no kernel", "another architecture", "empty"],
)
def test_an_image_without_one_is_told_so(tree: MemoryTree, message: str) -> None:
    with pytest.raises(CustomisationError, match=message):
        guest_kernel(tree)


@pytest.mark.parametrize("name", ["initrd.img-6.1", "initramfs-6.1.img", "initrd-6.1"])
def test_an_initramfs_that_keeps_its_arguments_is_refused(name: str) -> None:
    tree = MemoryTree({"/boot/vmlinuz-6.1": kernel(), f"/boot/{name}": File(b"of dracut")})
    with pytest.raises(CustomisationError, match=f"{name} was not made by initramfs-tools"):
        guest_kernel(tree)
