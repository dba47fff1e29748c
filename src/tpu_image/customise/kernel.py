"""Which kernel a package brought, and which one boots, read from a tree.

Sources: dpkg(1), "FILES" (/var/lib/dpkg); the GRUB manual, "Simple configuration handling" (GRUB_DEFAULT).
"""

from __future__ import annotations

import posixpath
import re
from typing import NamedTuple

from tpu_image.catalogue.boot_loader import BootLoader, read_boot_loader
from tpu_image.customise.session import CustomisationError
from tpu_image.formats.grub_config import LinuxLine, MenuEntry
from tpu_image.installed import installed
from tpu_image.trees.base import Tree

LISTS = "/var/lib/dpkg/info"

DEPTH = 4
"""Packages between the one that is named and the one with the kernel: linux-image-gcp -> linux-image-6.8.0-1-gcp."""

_KERNEL = re.compile(r"/boot/(vmlinu[xz]-[A-Za-z0-9.+~_-]+)")
_NAME = re.compile(r"[a-z0-9][a-z0-9.+-]*")


class KernelChoice(NamedTuple):
    """What is to boot and what does: file names in /boot; ``entry`` is what GRUB_DEFAULT must be for the first."""

    wanted: str
    boots: str
    entry: str


def packages_of(tree: Tree) -> dict[str, str]:
    """Names and versions of the Debian packages that are installed."""
    return {name: fields.get("Version", "") for name, fields in _installed(tree).items()}


def _installed(tree: Tree) -> dict[str, dict[str, str]]:
    return {fields.get("Package", ""): fields for fields in installed(tree)}


def kernel_of(tree: Tree, package: str) -> str:
    """Give the file name of the kernel that a package, or one that it depends on, has in /boot.

    Args:
        tree: the image.
        package: as apt-get install takes it: with a version or release where one is wanted.

    Raises:
        CustomisationError: none of them has one.
    """
    known = _installed(tree)
    names = [re.split("[:=/]", package)[0]]
    for _ in range(DEPTH):
        for name in names:
            if kernel := _kernel_in(tree, name, known.get(name, {}).get("Architecture", "")):
                return kernel
        depends = " , ".join(
            known[name].get(field, "")
            for name in names
            if name in known
            for field in ("Depends", "Pre-Depends")
        )
        names = [name for name in dict.fromkeys(_NAME.findall(depends)) if name in known and "linux" in name]
    raise CustomisationError(
        f"kernel: {package} brings no kernel to /boot; name a package of a kernel, such as linux-image-cloud-amd64"
    )


def _kernel_in(tree: Tree, package: str, architecture: str) -> str:
    for name in (package, f"{package}:{architecture}"):
        text = tree.read_text_if_present(f"{LISTS}/{name}.list") or ""
        for line in text.splitlines():
            if match := _KERNEL.fullmatch(line):
                return match.group(1)
    return ""


def choose(tree: Tree, package: str) -> KernelChoice:
    """Compare the kernel that a package brought with the one that boots.

    Raises:
        CustomisationError: no menu entry of GRUB starts it.
        FormatError: grub.cfg does not parse.
    """
    wanted = kernel_of(tree, package)
    loader = read_boot_loader(tree)
    boots, entries = "", []
    for linux, default in _lines(loader):
        kernel = posixpath.basename(linux.kernel)
        if default and not boots:
            boots = kernel
        if kernel == wanted and linux.entry is not None and not _is_recovery(linux):
            entries.append(linux.entry)
    if not entries:
        raise CustomisationError(
            f"kernel: no entry of GRUB's menu starts {wanted}; the image needs GRUB, and update-grub in it"
        )
    # The entry at the top of the menu starts whatever is newest then; those in submenus name their kernel.
    entry = max(entries, key=lambda entry: entry.parent is not None)
    return KernelChoice(wanted, boots, _identifier(entry))


def _lines(loader: BootLoader) -> list[tuple[LinuxLine, bool]]:
    found = []
    for path, config in loader.configs.items():
        if path.endswith("grub.cfg"):
            default = config.default_entry(loader.variables)
            found += [(linux, default is not None and linux.entry is default) for linux in config.linux_lines]
    return found


def _is_recovery(linux: LinuxLine) -> bool:
    words = {word.text for word in linux.arguments}
    return bool(words & {"single", "recovery"})


def _identifier(entry: MenuEntry) -> str:
    own = entry.id or entry.title.replace(">", ">>")
    return f"{_identifier(entry.parent)}>{own}" if entry.parent else own
