"""``tpu-image apply`` with agents: installed below a root, and taken out again for GKE."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent_images import docker_archive, layer, program
from cli_types import Run
from tpu_image import catalogue
from tpu_image.catalogue.vbar_agent import VbarAgent

UNPACKED = "usr/lib/tpu-image/agents/vbar_control_agent/usr/bin/vbar_control_agent"
UNIT = "usr/lib/systemd/system/tpu-image-vbar-agent.service"


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


@pytest.mark.parametrize("options", [("--undo", "--remove-agents"), ("--agent", "x", "--remove-agents")])
def test_what_contradicts_itself_is_refused(run: Run, system: Path, options: tuple[str, ...]) -> None:
    done = run("apply", system, *options)
    assert done.status == 2
    assert "do not go together" in done.err
