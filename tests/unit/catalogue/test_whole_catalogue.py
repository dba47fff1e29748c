"""The requirements together: whatever a root holds, apply makes it right once, and keeps what its owner wrote."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import case_trees
from tpu_image import catalogue
from tpu_image.catalogue import readings
from tpu_image.catalogue.requirement import Profile, Status
from tpu_image.trees.memory import File, MemoryTree, Node

PROFILE = Profile(agent_elsewhere=True)


def lines(*pool: str, most: int = 4) -> st.SearchStrategy[str]:
    """Some lines of a pool, in any order, each ended."""
    return st.lists(st.sampled_from(pool), max_size=most).map(
        lambda chosen: "".join(f"{x}\n" for x in chosen)
    )


GRUB = lines(
    "# GRUB_CMDLINE_LINUX=idle=halt",
    'GRUB_CMDLINE_LINUX=""',
    'GRUB_CMDLINE_LINUX="console=ttyS0,38400n8 nomodeset"',
    "GRUB_CMDLINE_LINUX_DEFAULT='quiet splash'",
    'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX site=1"',
    'GRUB_CMDLINE_LINUX="idle=poll intel_iommu=on transparent_hugepage=always,sm_on"',
    'GRUB_CMDLINE_LINUX_DEFAULT="transparent_hugepage=never"',
    "GRUB_TIMEOUT=3",
)
LIMITS = lines(
    "# site limits",
    "* hard nofile 4096",
    "* - memlock 64",
    "root soft nofile 1024",
    "@dev - nproc 100",
    "* soft nofile 200000",
    "nonsense",
)
RULES = lines(
    "# site rules",
    'SUBSYSTEM=="net", NAME="lan0"',
    'SUBSYSTEM=="vfio", MODE="0600"',
    'KERNEL=="accel*" MODE="0666"',
    'SUBSYSTEM=="pci", ATTR{vendor}=="0x1ae0", ENV{site}="1"',
    "not a rule",
)
ENVIRONMENT = lines(
    "# site",
    'PATH="/usr/local/bin:/usr/bin:/bin"',
    "GCS_READ_REQUEST_TIMEOUT_SECS=5",
    "GCS_READ_REQUEST_TIMEOUT_SECS=900",
    "export SITE='a b # c'",
    "CLOUDSDK_PYTHON=/usr/bin/python3",
)
MODPROBE = lines("# site", "options kvm_intel nested=1", "options vfio_iommu_type1 allow_unsafe_interrupts=0")
FILES = {
    "/etc/default/grub": GRUB,
    "/etc/default/grub.d/50-site.cfg": GRUB,
    "/etc/default/grub.d/zz-site.cfg": GRUB,
    "/etc/security/limits.conf": LIMITS,
    "/etc/security/limits.d/zz-site.conf": LIMITS,
    "/etc/udev/rules.d/70-site.rules": RULES,
    "/etc/udev/rules.d/99-zz-site.rules": RULES,
    "/etc/environment": ENVIRONMENT,
    "/etc/modprobe.d/vfio.conf": MODPROBE,
}
ROOTS = st.fixed_dictionaries({}, optional=FILES)

MENDED = ("idle=", "intel_iommu=", "transparent_hugepage=", "GCS_", "KERNEL==")
"""What apply may change in a line of the owner: our own parameters and time-outs, and a comma that udev misses."""


def root(contents: dict[str, str]) -> MemoryTree:
    nodes: dict[str, Node] = dict(case_trees.start("debian"))
    nodes |= {path: File(text.encode(), 0o640, 0, 7) for path, text in contents.items()}
    return MemoryTree(nodes)


def failing(tree: Any) -> list[str]:
    return [
        f"{verdict.requirement}: {verdict.message}"
        for verdict in readings.check(tree, PROFILE)
        if verdict.status in (Status.FAIL, Status.UNKNOWN)
    ]


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(ROOTS)
def test_apply_makes_any_mix_right_once_and_keeps_its_owners_lines(contents: dict[str, str]) -> None:
    applied = readings.plan(root(contents), PROFILE)
    assert failing(applied) == []
    assert readings.plan(applied, PROFILE).written == {}, "a second apply changed something"
    for path, text in contents.items():
        kept = applied.read_text(path).splitlines()
        for line in text.splitlines():
            assert line in kept or any(word in line for word in MENDED), f"{path}: {line}"
        entry = applied.lstat(path)
        assert entry is not None
        assert (entry.mode, entry.uid, entry.gid) == (0o640, 0, 7)


SECTIONS = sorted({requirement.id.partition(".")[0] for requirement in catalogue.requirements()})


@pytest.mark.parametrize("section", SECTIONS)
def test_each_section_can_be_applied_alone(section: str) -> None:
    applied = readings.plan(MemoryTree(case_trees.start("debian")), PROFILE, only=[section])
    verdicts = readings.check(applied, PROFILE, only=[section])
    assert [v.message for v in verdicts if v.status in (Status.FAIL, Status.UNKNOWN)] == []
