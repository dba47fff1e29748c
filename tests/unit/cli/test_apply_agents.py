"""``tpu-image apply`` with agents: installed below a root, and taken out again for GKE."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_images import docker_archive, layer, program
from cli_types import Run
from tpu_image import catalogue
from tpu_image.catalogue.telemetry import COLLECTOR, TelemetryCollector
from tpu_image.catalogue.vbar_agent import VbarAgent

UNPACKED = "usr/lib/tpu-image/agents/vbar_control_agent/usr/bin/vbar_control_agent"
UNIT = "usr/lib/systemd/system/tpu-image-vbar-agent.service"
COLLECTOR_UNIT = f"usr/lib/systemd/system/{COLLECTOR.unit}"


@pytest.fixture(autouse=True)
def agent_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "requirements", lambda: (VbarAgent(),))


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    return docker_archive(tmp_path / "agent.tar", layer(program()))


@pytest.fixture
def system(root: Path) -> Path:
    """A root that systemd starts."""
    units = root / "usr/lib/systemd/system"
    units.mkdir(parents=True)
    (units / "multi-user.target").write_text("[Unit]\n")
    (units / "default.target").symlink_to("multi-user.target")
    return root


def test_an_agent_is_installed_below_a_root_and_taken_out_again(
    run: Run, system: Path, archive: Path
) -> None:
    assert run("apply", system).status == 1
    done = run("apply", system, "--agent", archive)
    assert done.status == 0, done.err
    assert "install vbar_control_agent of " in done.out
    assert (system / UNPACKED).stat().st_mode & 0o777 == 0o755
    done = run("apply", system, "--platform", "gke", "--remove-agents")
    assert done.status == 0, done.err
    assert "remove /usr/lib/tpu-image/agents/vbar_control_agent\n" in done.out
    assert not (system / UNPACKED).exists()
    assert not (system / UNIT).exists()


def test_a_dry_run_unpacks_and_removes_nothing(run: Run, system: Path, archive: Path) -> None:
    assert UNIT in run("apply", system, "--agent", archive, "--dry-run").out
    assert not (system / UNPACKED).exists()
    run("apply", system, "--agent", archive)
    run("apply", system, "--platform", "gke", "--remove-agents", "--dry-run")
    assert (system / UNPACKED).exists()


def test_the_collector_is_installed_with_its_configuration(
    run: Run, system: Path, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "requirements", lambda: (VbarAgent(), TelemetryCollector()))
    (tmp_path / "collector.yaml").write_text("receivers: {}\n")
    sources = (
        "--agent",
        archive,
        "--telemetry-agent",
        archive,
        "--telemetry-config",
        tmp_path / "collector.yaml",
    )
    done = run("apply", system, "--telemetry", *sources)
    assert done.status == 0, done.err
    assert done.out.count("install ") == 2
    assert (system / COLLECTOR_UNIT).is_file()
    # In the container there is an empty file where it is mounted over.
    assert "receivers: {}\n" in [path.read_text() for path in system.rglob("*.yaml")]


def test_what_says_more_of_an_agent_goes_with_one(run: Run, system: Path, tmp_path: Path) -> None:
    (tmp_path / "auth.json").write_text("{}")
    for options in (("--agent-runtime", "systemd"), ("--authfile", tmp_path / "auth.json")):
        done = run("apply", system, *options)
        assert done.status == 2
        assert f"{options[0]} goes with --agent or --telemetry-agent" in done.err


@pytest.mark.parametrize("options", [("--undo", "--remove-agents"), ("--agent", "x", "--remove-agents")])
def test_what_contradicts_itself_is_refused(run: Run, system: Path, options: tuple[str, ...]) -> None:
    done = run("apply", system, *options)
    assert done.status == 2
    assert "do not go together" in done.err
