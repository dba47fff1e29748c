"""gke.host-tools and gke.tunables."""

from __future__ import annotations

import pytest

from case_trees import program
from tpu_image.catalogue.gke import HOST_TOOLS, TUNABLES, HostTools, Tunables
from tpu_image.catalogue.requirement import Platform, Profile, Requirement, Status
from tpu_image.trees.memory import File, MemoryTree

GKE = Profile(platform=Platform.GKE)
X86 = File(program("x86_64"), 0o755)
TOOLS = {f"/usr/sbin/{tool}": X86 for tool in HOST_TOOLS}
SETTINGS = {path: File(b"1\n", 0o644) for path in TUNABLES}


@pytest.mark.parametrize("requirement", [HostTools(), Tunables()])
def test_it_is_asked_of_gke_alone(requirement: Requirement) -> None:
    assert not requirement.applies(GKE)
    assert requirement.applies(Profile())


def test_all_tools_hold() -> None:
    assert HostTools().inspect(MemoryTree(TOOLS), GKE).status is Status.PASS


@pytest.mark.parametrize("tool", HOST_TOOLS)
def test_a_tool_that_is_missing_is_named_with_its_package(tool: str) -> None:
    nodes = {path: node for path, node in TOOLS.items() if not path.endswith(f"/{tool}")}
    verdict = HostTools().inspect(MemoryTree({**nodes, "/etc/os-release": File(b"ID=debian\n")}), GKE)
    assert verdict.status is Status.FAIL
    assert verdict.message == f"missing: {tool}"
    assert verdict.remedy == f"in the image: apt-get install {HOST_TOOLS[tool]}"


def test_settings_that_can_be_written_hold() -> None:
    assert Tunables().observe(MemoryTree(SETTINGS), GKE).status is Status.PASS


@pytest.mark.parametrize("path", TUNABLES)
def test_a_setting_that_is_absent_or_read_only_is_named(path: str) -> None:
    for changed in (
        {**SETTINGS, path: File(b"1\n", 0o444)},
        {p: f for p, f in SETTINGS.items() if p != path},
    ):
        verdict = Tunables().observe(MemoryTree(changed), GKE)
        assert verdict.status is Status.FAIL
        assert path in verdict.message
