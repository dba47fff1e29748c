"""The kernel of an image and its initramfs, with which a virtual machine of the image's own starts.

Sources: Linux ``Documentation/arch/x86/boot.rst`` for the header; initramfs-tools(7) for the initramfs.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from typing import NamedTuple

from tpu_image.catalogue.boot_loader import read_boot_loader
from tpu_image.customise.session import CustomisationError
from tpu_image.disks.image_tree import KERNELS
from tpu_image.formats import FormatError
from tpu_image.trees.base import Tree, TreeError

FOLDER = "/boot"
INITRAMFS = ("initrd.img-{}", "initramfs-{}.img", "initrd-{}", "initramfs-{}")
"""Names as Debian and Ubuntu, Fedora, and SUSE give them."""

MADE_BY = "/usr/share/initramfs-tools/init"
"""What Debian's and Ubuntu's start with: it passes its arguments on, which systemd in one of dracut does not."""

SIGNATURE_AT, SIGNATURE = 0x202, b"HdrS"

LIMIT = 512 << 20
"""Bytes of a kernel or an initramfs at most."""


class GuestKernel(NamedTuple):
    """A kernel that QEMU starts, and its initramfs, which is empty where there is none."""

    path: str
    kernel: bytes
    initramfs: bytes


def guest_kernel(tree: Tree) -> GuestKernel:
    """Read the kernel that boots, or the newest where the boot loader does not say.

    Raises:
        CustomisationError: there is none that a machine of this kind starts.
        TreeError: one cannot be read.
    """
    name = _booting(tree) or _newest(tree)
    if not name:
        raise CustomisationError(f"the image has no kernel in {FOLDER}, with which its programs could be run")
    path = posixpath.join(FOLDER, name)
    kernel = tree.read_bytes(path, LIMIT)
    if kernel[SIGNATURE_AT : SIGNATURE_AT + len(SIGNATURE)] != SIGNATURE:
        raise CustomisationError(
            f"{path} is no kernel for x86-64, with which the image's programs could be run"
        )
    initramfs = _initramfs(tree, name)
    if initramfs and not tree.is_file(MADE_BY):
        raise CustomisationError(
            f"{initramfs} was not made by initramfs-tools, which a virtual machine needs; run it as root, with"
            " --run-in namespace"
        )
    return GuestKernel(path, kernel, tree.read_bytes(initramfs, LIMIT) if initramfs else b"")


def _booting(tree: Tree) -> str:
    try:
        kernels = [entry.kernel for entry in read_boot_loader(tree).entries if entry.boots]
    except (FormatError, TreeError):
        return ""
    names = [posixpath.basename(kernel) for kernel in kernels]
    return next((name for name in names if name and tree.is_file(posixpath.join(FOLDER, name))), "")


def _newest(tree: Tree) -> str:
    if not tree.is_directory(FOLDER):
        return ""
    names = [name for name in fnmatch.filter(tree.names(FOLDER), KERNELS) if tree.is_file(f"{FOLDER}/{name}")]
    # Links without a version, and what a package manager left behind, have none beside them.
    return max(names, key=lambda name: (bool(_initramfs(tree, name)), _by_number(name)), default="")


def _by_number(name: str) -> list[tuple[int, str]]:
    """Sort 6.10 behind 6.9."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _initramfs(tree: Tree, kernel: str) -> str:
    version = kernel.partition("-")[2]
    paths = (posixpath.join(FOLDER, pattern.format(version)) for pattern in INITRAMFS)
    return next((path for path in paths if tree.is_file(path)), "")
