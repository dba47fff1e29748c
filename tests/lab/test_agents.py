"""An agent in a guest: run by systemd alone and by Debian's Docker, as the document has it, at every boot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agent_guests import CONTAINER_CRASHING, CONTAINER_STATE, CRASHING, KILLED, UNPACKED_STATE, Told
from agent_images import docker_archive, layer, program, stand_in
from customise_lab import debian_sources
from lab_images import built_by
from lab_statuses import verdict, wrong
from tpu_image.catalogue.requirement import Status
from tpu_image.catalogue.vbar_agent import VBAR
from tpu_image.lab.result import BootResult

Boot = Callable[..., BootResult]

SPECIFICATION = """\
base: {base}
output: {{path: tpu.qcow2, format: qcow2}}
agents: {{vbar: {agent}}}
waive: {{prerequisites.gcloud: the base has none}}
"""
DOCKER = """\
packages: [docker.io]
sources: apt.sources
"""


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive of a stand-in for the agent."""
    folder = tmp_path_factory.mktemp("agent")
    return docker_archive(folder / "agent.tar", layer(program(stand_in(folder))))


BEYOND_DOCKER = 0b111 << 38
"""CAP_PERFMON, CAP_BPF and CAP_CHECKPOINT_RESTORE (Linux 5.8 and 5.9), of which Debian 12's Docker does not know."""


def is_run_as_documented(told: Told, beyond: int = 0) -> None:
    """Hold what the stand-in noted when it was started last against the document.

    Args:
        told: what it noted.
        beyond: capabilities that ``--privileged`` need not give.
    """
    assert told.values["argument"][-len(VBAR.arguments) :] == list(VBAR.arguments)
    assert len(told.values["argument"]) == len(VBAR.arguments) * len(told.values["program"])
    assert told["net"] == told["machine.net"]
    assert told["mnt"] != told["machine.mnt"]
    assert int(told["CapEff"], 16) | beyond == int(told["CapBnd"], 16)
    assert (told["Seccomp"], told["Uid"].split()[0]) == ("0", "0")
    assert (told["cwd"], told["MODE"], told["HOME"]) == ("/", "50% $x", "/")
    assert (told["null"], told["sys"], told["usr"]) == ("1", "1", "0")
    assert (told["running"], told["enabled"], told["ready"]) == ("1", "enabled", "active")
    assert told["restarts"] == "0"


@pytest.mark.lab
def test_systemd_runs_the_agent_at_every_boot_and_a_crash_loop_is_told(
    boot: Boot, base: Path, agent: Path, tmp_path: Path
) -> None:
    built_by(tmp_path, SPECIFICATION.format(base=base, agent=agent))
    result = boot(
        tmp_path / "tpu.qcow2", "v6e:1", agent=True, boots=2, run=(UNPACKED_STATE, KILLED, CRASHING)
    )
    assert wrong(result) == {}
    assert verdict(result, "machine.agent").status is Status.PASS
    assert f"listens on port {VBAR.port}" in verdict(result, "machine.agent").message
    first, killed, crashing, second, *_ = result.guest.run
    is_run_as_documented(Told.by(first))
    assert len(Told.by(first).values["program"]) == 1
    is_run_as_documented(Told.by(second))
    assert Told.by(killed).values["exit"] == ["signal killed KILL"]
    assert '"fail"' in crashing.output
    assert "the vBar agent does not run" in crashing.output
    assert "at last by exit status 3" in crashing.output


@pytest.mark.matrix
def test_docker_runs_the_agent_at_every_boot_from_what_it_loaded_once(
    boot: Boot, base: Path, agent: Path, tmp_path: Path
) -> None:
    (tmp_path / "apt.sources").write_bytes(debian_sources())
    built_by(tmp_path, SPECIFICATION.format(base=base, agent=agent) + DOCKER)
    commands = (CONTAINER_STATE, KILLED, CONTAINER_CRASHING)
    result = boot(tmp_path / "tpu.qcow2", "v6e:1", agent=True, boots=2, run=commands)
    assert wrong(result) == {}
    assert verdict(result, "machine.agent").status is Status.PASS
    states = [Told.by(run) for run in result.guest.run[::3]]
    for told in states:
        is_run_as_documented(told, BEYOND_DOCKER)
        assert len(told.values["program"]) == 1
        assert (told["privileged"], told["network"], told["containers"]) == ("true", "host", "1")
        assert told["pid"] != told["machine.pid"]
        assert len(told.values["image"]) == 2
        assert VBAR.image in told.values["image"]
    assert len({told["loaded"] for told in states}) == 1
    assert [Told.by(run)["exit"] for run in result.guest.run[1::3]] == ["exit-code exited 137"] * 2
    crashing = Told.by(result.guest.run[2])
    assert (crashing["state"], crashing["stopped"]) == ("inactive", "success exited 137")
    assert "exit status 5" in result.guest.run[2].output
