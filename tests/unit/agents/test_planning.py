"""Which agents an image gets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from agent_images import docker_archive, entry, layer
from tpu_image.agents.errors import AgentError
from tpu_image.agents.planning import AgentRequest, installations, nodes_of
from tpu_image.catalogue import readings
from tpu_image.catalogue.requirement import Platform, Profile, Status
from tpu_image.catalogue.telemetry import COLLECTOR
from tpu_image.catalogue.vbar_agent import VBAR
from tpu_image.trees.memory import File, MemoryTree, Node, Symlink
from tpu_image.trees.overlay import Overlay

LIB = "/usr/lib/systemd/system"
BASE: dict[str, Node] = {
    f"{LIB}/default.target": Symlink("multi-user.target"),
    f"{LIB}/multi-user.target": File(b"[Unit]\nWants=agent.service\n"),
}
STARTED: dict[str, Node] = {
    **BASE,
    "/usr/bin/vbar_control_agent": File(b"\x7fELF", 0o755),
    f"{LIB}/agent.service": File(
        f"[Service]\nExecStart=/usr/bin/vbar_control_agent {' '.join(VBAR.arguments)}\n".encode()
    ),
}
GKE = Profile(platform=Platform.GKE)


@dataclass(frozen=True)
class Wanted:
    about: str
    profile: Profile
    base: dict[str, Node]
    names: tuple[str, ...]
    """Agents that a source is given for."""
    agents: tuple[str, ...]


BOTH = (VBAR.program, COLLECTOR.program)
WANTED = [
    Wanted("one that is named", Profile(), BASE, (VBAR.program,), (VBAR.program,)),
    Wanted(
        "one that is named beside one that is there", Profile(), STARTED, (VBAR.program,), (VBAR.program,)
    ),
    Wanted("none where the base starts one", Profile(), STARTED, (), ()),
    Wanted("none where it comes from elsewhere", Profile(agent_elsewhere=True), BASE, (), ()),
    Wanted("none where it is waived", Profile(waivers={"vbar.agent": "later"}), BASE, (), ()),
    Wanted("none on GKE", GKE, BASE, (), ()),
    Wanted("both with telemetry", Profile(telemetry=True), BASE, BOTH, BOTH),
]


def request(folder: Path, names: tuple[str, ...], text: Path | None = None) -> AgentRequest:
    def archive(name: str) -> str:
        if name not in names:
            return ""
        path = folder / f"{name}.tar"
        files = layer(entry(name, b"\x7fELF", mode=0o755))
        return str(docker_archive(path, files, names=[f"gcr.io/x/{name}:1"], Entrypoint=[f"/{name}"]))

    return AgentRequest(archive(VBAR.program), archive(COLLECTOR.program), text)


@pytest.mark.parametrize("case", WANTED, ids=lambda case: case.about)
def test_an_image_gets(case: Wanted, tmp_path: Path) -> None:
    with installations(request(tmp_path, case.names), case.profile, MemoryTree(case.base)) as made:
        assert tuple(one.agent.program for one in made) == case.agents


@pytest.mark.parametrize(
    ("profile", "mentions"),
    [
        (GKE, "GKE brings the vBar agent itself"),
        (Profile(agent_elsewhere=True), "not wanted: the agent comes from elsewhere"),
        (Profile(waivers={"vbar.agent": "later"}), "not wanted: waived: later"),
        (Profile(), "not wanted: telemetry was not asked for"),
    ],
)
def test_an_agent_that_must_not_be_there_is_refused(profile: Profile, mentions: str, tmp_path: Path) -> None:
    asked = request(tmp_path, BOTH)
    with pytest.raises(AgentError, match=mentions), installations(asked, profile, MemoryTree(BASE)):
        pass


def test_a_configuration_needs_telemetry(tmp_path: Path) -> None:
    asked = request(tmp_path, (VBAR.program,), tmp_path / "config.yaml")
    with (
        pytest.raises(AgentError, match="telemetry, which is off"),
        installations(asked, Profile(), MemoryTree(BASE)),
    ):
        pass


def test_both_agents_get_into_one_image_and_the_check_finds_them(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("a: 1\n")
    profile = Profile(telemetry=True)
    tree = MemoryTree(BASE)
    with installations(request(tmp_path, BOTH, tmp_path / "config.yaml"), profile, tree) as made:
        overlay = Overlay(tree)
        for one in made:
            one.write(overlay)
        nodes = nodes_of(made, overlay.written, overlay)
        finished = MemoryTree(BASE)
        for path in sorted(nodes):
            node = nodes[path]
            assert node is not None
            finished.put(path, node)
    verdicts = readings.check(finished, profile, only=["vbar.agent", "telemetry.collector"])
    assert [verdict.status for verdict in verdicts] == [Status.PASS] * 2, verdicts
