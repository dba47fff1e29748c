"""Images for boots, made of a bootable base without root: changed in a file system, written out raw."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tpu_image.build import Request, build
from tpu_image.catalogue.requirement import Profile
from tpu_image.disks.archive import write_raw
from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.image import open_image
from tpu_image.disks.image_tree import open_tree
from tpu_image.disks.tree_writer import write_nodes
from tpu_image.plan import Plan
from tpu_image.trees.overlay import Overlay
from vfio_recipe import ACCEL_RULES, BIND_RULES, BIND_SCRIPT

GRUB_CFG = "/boot/grub/grub.cfg"

LIMITS = """\
*  hard  memlock  unlimited
*  soft  memlock  unlimited
*    soft    nofile       100000
*    hard    nofile       100000
root soft    nofile       100000
root hard    nofile       100000
"""

GRUB_RECIPE = r"""
kernel_cmdline="idle=poll"
kernel_cmdline="${kernel_cmdline} intel_iommu=on,sm_on";
sed -i "s/GRUB_CMDLINE_LINUX=\"\"/GRUB_CMDLINE_LINUX=\"${kernel_cmdline}\"/" "$0"
sed -i -r 's/GRUB_CMDLINE_LINUX="[a-zA-Z0-9_= ]*/& transparent_hugepage=always/' "$0"
"""
"""The document's own commands, sections "Parametri del kernel" and what follows, on the file $0."""


def edited(base: Path, output: Path, write: Callable[[Overlay], None]) -> Path:
    """Write a base out, raw, with what a function writes into its tree."""
    with open_image(base) as source, output.open("wb") as file:
        disk = EditedDisk(source)
        tree = open_tree(disk)
        overlay = Overlay(tree)
        write(overlay)
        changes = Plan.from_overlay(overlay).changes
        write_nodes(disk, tree, {change.path: change.after for change in changes}, time=int(time.time()))
        write_raw(disk, file)
    return output


def built_by(
    folder: Path, specification: str, *options: str, status: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run ``tpu-image build`` with a specification in a folder; it must end with a status."""
    path = folder / "tpu-image.yaml"
    path.write_text(specification)
    done = subprocess.run(
        [sys.executable, "-m", "tpu_image", "build", "--spec", path, *options],
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr[-3000:]
    return done


def add_kernel_parameters(overlay: Overlay, text: str) -> None:
    """Put words behind every kernel in grub.cfg."""
    config = overlay.read_text(GRUB_CFG)
    overlay.write(GRUB_CFG, re.sub(r"^(\s*linux\s.*?)\s*$", rf"\1 {text}", config, flags=re.M))


def add_kernel(overlay: Overlay, kernel: Path) -> None:
    """Add a kernel that lies in a folder as in an image, and have GRUB boot it without an initramfs."""
    for path in filter(Path.is_file, kernel.rglob("*")):
        overlay.write(f"/{path.relative_to(kernel)}", path.read_bytes(), mode=0o644)
    (image,) = (kernel / "boot").iterdir()
    config = re.sub(r"^\s*initrd\s.*\n", "", overlay.read_text(GRUB_CFG), flags=re.M)
    line = rf"\1/boot/{image.name} root=/dev/sda1"
    overlay.write(GRUB_CFG, re.sub(r"^(\s*linux\s+)\S+ root=\S+", line, config, flags=re.M))


def tpu_image_of(base: Path, output: Path) -> Path:
    """Build a TPU image of a base, as Compute Engine imports it."""
    waived = {"prerequisites.gcloud": "the base has none"}
    done = build(Request(base, output, Profile(agent_elsewhere=True, waivers=waived)))
    assert done.holds
    return output


def by_the_document(overlay: Overlay, scratch: Path) -> None:
    """Do what the document says, to the letter, to a system whose GRUB_CMDLINE_LINUX is empty."""
    overlay.write("/etc/udev/rules.d/99-tpu-vfiopci.rules", BIND_RULES)
    overlay.write("/lib/udev/bind_to_vfio_pci.sh", BIND_SCRIPT, mode=0o755)
    overlay.write("/etc/udev/rules.d/99-tpu.rules", ACCEL_RULES)
    limits = overlay.read_text("/etc/security/limits.conf")
    overlay.write("/etc/security/limits.conf", limits + LIMITS)
    add_kernel_parameters(overlay, recipe_command_line(scratch))


def recipe_command_line(scratch: Path) -> str:
    """Run the document's commands on an empty setting, and give what it becomes."""
    defaults = scratch / "grub"
    defaults.write_text('GRUB_CMDLINE_LINUX=""\n')
    subprocess.run(["bash", "-c", GRUB_RECIPE, str(defaults)], check=True)
    return defaults.read_text().split('"')[1]
