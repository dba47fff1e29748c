"""Boot files in memory: roots with GRUB as Debian has it, and what check and apply make of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tpu_image.catalogue.boot_loader import DEFAULTS
from tpu_image.catalogue.kernel_cmdline import REQUIREMENTS
from tpu_image.catalogue.requirement import Profile, Requirement, Verdict
from tpu_image.formats.grub_config import GrubConfig
from tpu_image.trees.base import Tree
from tpu_image.trees.memory import File, MemoryTree
from tpu_image.trees.overlay import Overlay

BY_ID = {requirement.id: requirement for requirement in REQUIREMENTS}
PLANNED = [requirement for requirement in REQUIREMENTS if not requirement.live]
ALL = "idle=poll intel_iommu=on,sm_on transparent_hugepage=always"
GRUB_CFG = "/boot/grub/grub.cfg"


def tree_of(files: Mapping[str, str]) -> MemoryTree:
    return MemoryTree({path: File(text.encode()) for path, text in files.items()})


def grub_cfg(normal: str, recovery: str | None) -> str:
    """A grub.cfg as Debian's 10_linux writes it for one kernel; without a recovery entry for None."""
    linux = "linux\t/boot/vmlinuz-6.1 root=UUID=1 ro"
    rescue = f"""\
\tmenuentry 'Debian, with Linux 6.1 (recovery mode)' $menuentry_id_option 'gnulinux-6.1-recovery-1' {{
\t\t{linux} single {recovery}
\t}}
"""
    rescue = "" if recovery is None else rescue
    return f"""\
set default="0"
menuentry 'Debian' $menuentry_id_option 'gnulinux-simple-1' {{
\t{linux} {normal}
}}
submenu 'Advanced' $menuentry_id_option 'gnulinux-advanced-1' {{
\tmenuentry 'Debian, with Linux 6.1' $menuentry_id_option 'gnulinux-6.1-advanced-1' {{
\t\t{linux} {normal}
\t}}
{rescue}}}
menuentry 'Memory test' {{
\tlinux16 /boot/memtest86+.bin
}}
"""


def debian(linux: str = "", default: str = "quiet", **more: str) -> dict[str, str]:
    """The boot files of a Debian whose defaults and entries agree."""
    return {
        DEFAULTS: f'# GRUB_CMDLINE_LINUX="no"\nGRUB_CMDLINE_LINUX_DEFAULT="{default}"\nGRUB_CMDLINE_LINUX="{linux}"\n',
        GRUB_CFG: grub_cfg(f"{linux} {default}", linux),
    } | more


def applied(tree: Tree, only: Sequence[Requirement] = PLANNED, profile: Profile | None = None) -> Overlay:
    overlay = Overlay(tree)
    for requirement in only:
        requirement.plan(overlay, profile or Profile())
    return overlay


def verdicts(tree: Tree, profile: Profile | None = None) -> dict[str, Verdict]:
    return {r.id: r.inspect(tree, profile or Profile()) for r in PLANNED}


def statuses(tree: Tree, profile: Profile | None = None) -> list[str]:
    """The verdicts on idle, iommu and thp."""
    return [verdict.status.value for verdict in verdicts(tree, profile).values()]


def shown(verdict: Verdict) -> str:
    """All that a report shows of a verdict."""
    return "\n".join(
        [verdict.message, *(f"{e.path}:{e.line} {e.found} | {e.expected}" for e in verdict.evidence)]
    )


def lines_of(tree: Tree, path: str = GRUB_CFG) -> list[list[str]]:
    """The words of every kernel line."""
    config = GrubConfig.parse(tree.read_text(path))
    return [[word.raw for word in line.arguments] for line in config.linux_lines]


def written(overlay: Overlay) -> dict[str, str]:
    """The files written over a tree."""
    return {path: overlay.read_text(path) for path, node in overlay.written.items() if isinstance(node, File)}
