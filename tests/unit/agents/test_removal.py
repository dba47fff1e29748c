"""Agents are taken out for GKE: what a plan does, what is removed beside it, and what is left to a command."""

from __future__ import annotations

from pathlib import Path

from agent_images import docker_archive, layer, program
from disk_trees import materialise, owned
from tpu_image.agents.installation import installed
from tpu_image.agents.removal import plan_removal, without_snap
from tpu_image.agents.spool import Spool
from tpu_image.catalogue.agent_record import AGENTS
from tpu_image.catalogue.requirement import Platform, Profile, Status
from tpu_image.catalogue.telemetry import TelemetryCollector
from tpu_image.catalogue.vbar_agent import VBAR, VbarAgent
from tpu_image.plan import Plan, apply
from tpu_image.trees.directory import DirectoryTree
from tpu_image.trees.memory import File, MemoryTree
from tpu_image.trees.overlay import Overlay

GKE = Profile(platform=Platform.GKE)
SEED = """\
snaps:
  -
    name: core22
    file: core22_1.snap
  -
    name: vbarcontrolagent # ours
    file: vbarcontrolagent_12.snap
  -
    name: lxd
    file: lxd_1.snap
"""


def test_what_was_installed_is_taken_out_again(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "etc/systemd/system/multi-user.target.wants").mkdir(parents=True)
    (root / "etc/systemd/system/default.target").symlink_to("multi-user.target")
    (root / "etc/systemd/system/multi-user.target").write_text("[Unit]\n")
    archive = docker_archive(tmp_path / "image.tar", layer(program()))
    with DirectoryTree(root) as tree, Spool() as spool, installed(VBAR, str(archive), spool, tree) as made:
        overlay = Overlay(tree)
        made.write(overlay)
        materialise(
            {path: owned(node) for path, node in sorted(overlay.written.items()) if node is not None}, root
        )
        made.unpack(str(root))
    with DirectoryTree(root) as tree:
        verdict = VbarAgent().inspect(tree, GKE)
        assert verdict.status is Status.FAIL
        assert VBAR.unit in verdict.message
        assert f"{AGENTS}/vbar_control_agent" in verdict.message
        overlay = Overlay(tree)
        removal = plan_removal(overlay, [VbarAgent(), TelemetryCollector()])
        apply(Plan.from_overlay(overlay), root)
        assert removal.remove_directories(str(root)) == [f"{AGENTS}/vbar_control_agent"]
        assert removal.commands == []
    with DirectoryTree(root) as tree:
        assert VbarAgent().inspect(tree, GKE).status is Status.PASS
        assert tree.names("/etc/systemd/system/multi-user.target.wants") == []
        assert tree.names("/usr/lib/tpu-image") == ["agents"]


def test_programs_archives_and_seeded_snaps_go_and_stores_are_left_to_their_owners() -> None:
    snap = "/var/lib/snapd/seed/snaps/vbarcontrolagent_12.snap"
    installed_snap = "/var/lib/snapd/snaps/ai-telemetry-collector_3.snap"
    tree = MemoryTree(
        {
            "/usr/local/bin/vbar_control_agent": File(b"\x7fELF", 0o755),
            "/opt/vbar_control_agent.tar.gz": File(b""),
            snap: File(b"hsqs"),
            installed_snap: File(b"hsqs"),
            "/var/lib/snapd/seed/seed.yaml": File(SEED.encode()),
        }
    )
    overlay = Overlay(tree)
    removal = plan_removal(overlay, [VbarAgent(), TelemetryCollector()])
    assert VbarAgent().inspect(overlay, GKE).status is Status.PASS
    assert removal.commands == [f"snap remove --purge ai-telemetry-collector; rm -f {installed_snap}"]
    assert removal.directories == []


def test_a_snap_is_taken_out_of_the_seed_and_nothing_else() -> None:
    assert without_snap(SEED, "vbarcontrolagent") == SEED.replace(
        "  -\n    name: vbarcontrolagent # ours\n    file: vbarcontrolagent_12.snap\n", ""
    )
    assert without_snap(SEED, "core") == SEED
    assert without_snap("snaps: []\n", "core") == "snaps: []\n"


def test_nothing_is_removed_where_nothing_is() -> None:
    overlay = Overlay(MemoryTree({}))
    removal = plan_removal(overlay, [VbarAgent(), TelemetryCollector()])
    assert (overlay.written, removal.commands, removal.directories) == ({}, [], [])
