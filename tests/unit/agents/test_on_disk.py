"""An agent gets into the ext4 of a disk image as a build does it, and a check of the image finds it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import build_bases as bases
from agent_images import directory, docker_archive, entry, hard_link, layer, link, program
from disk_tools import run
from tpu_image.agents.installation import installed
from tpu_image.agents.spool import Spool
from tpu_image.agents.units import Docker
from tpu_image.catalogue import readings
from tpu_image.catalogue.agent_record import AGENTS
from tpu_image.catalogue.requirement import Profile, Status
from tpu_image.catalogue.vbar_agent import VBAR
from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.image import open_image
from tpu_image.disks.image_tree import open_tree
from tpu_image.disks.objections import open_system
from tpu_image.disks.tree_writer import write_nodes
from tpu_image.plan import Plan
from tpu_image.trees.base import Kind

PROFILE = Profile()
LAYER = layer(
    directory("tmp", 0o1777),
    link("bin", "usr/bin"),
    program(b"\x7fELF" + os.urandom(300_000)),
    entry("usr/bin/sudo", b"x", mode=0o4755, uid=7, gid=8),
    hard_link("usr/bin/again", "usr/bin/sudo"),
    *(entry(f"usr/share/many/{number:04}", b"y" * number) for number in range(800)),
)


@pytest.mark.parametrize("runtime", ["systemd", "docker"])
def test_an_agent_gets_into_a_disk_image(
    runtime: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker = Docker("/usr/bin/docker", "docker.service") if runtime == "docker" else None
    monkeypatch.setattr("tpu_image.agents.installation.find_docker", lambda _: docker)
    archive = docker_archive(tmp_path / "image.tar", LAYER)
    with open_image(bases.gpt_disk(tmp_path)) as base, Spool() as spool:
        disk = EditedDisk(base)
        tree = open_tree(disk)
        with installed(VBAR, str(archive), spool, tree) as made:
            overlay = readings.plan(tree, PROFILE)
            made.write(overlay)
            changes = {change.path: change.after for change in Plan.from_overlay(overlay).changes}
            write_nodes(disk, tree, made.nodes(changes, overlay.resolve(AGENTS)), time=1_700_000_000)
        finished = open_system(disk)
        if runtime == "systemd":
            (verdict,) = readings.check(finished, PROFILE, only=["vbar.agent"])
            assert verdict.status is Status.PASS, verdict
            sudo = finished.lstat(f"{AGENTS}/vbar_control_agent/usr/bin/sudo")
            assert sudo is not None
            assert (sudo.kind, sudo.mode, sudo.uid, sudo.gid) == (Kind.FILE, 0o4755, 7, 8)
            assert len(finished.names(f"{AGENTS}/vbar_control_agent/usr/share/many")) == 800
        else:
            assert finished.is_file(f"{AGENTS}/vbar_control_agent.tar")
        folder = finished.stat(AGENTS)
        assert folder is not None
        assert folder.mode == 0o700
        written = tmp_path / "written.raw"
        with written.open("wb") as file:
            for offset in range(0, disk.size, 1 << 20):
                file.write(disk.read_at(offset, min(1 << 20, disk.size - offset)))
    root = tmp_path / "root.img"
    data = written.read_bytes()
    start = bases.offsets(written)[1]
    root.write_bytes(data[start : start + (tmp_path / "root.ext4").stat().st_size])
    run("e2fsck", "-fn", root)
