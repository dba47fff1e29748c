"""What the catalogue plans for any machine, rendered for each kind of profile."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tpu_image.catalogue import hardware, readings
from tpu_image.catalogue.requirement import Platform, Profile
from tpu_image.render import cloud_config, shell
from tpu_image.render.steps import Steps, steps_of
from tpu_image.render.typical import typical_tree
from tpu_image.trees.memory import File

PROFILES = {
    "default": Profile(),
    "gke": Profile(platform=Platform.GKE),
    "a group owns the devices": Profile(device_group="tpu"),
    "every generation": replace(Profile(), generations=hardware.GENERATIONS),
}


@pytest.fixture(params=[*PROFILES.values()], ids=[*PROFILES])
def steps(request: pytest.FixtureRequest) -> Steps:
    return steps_of(readings.plan(typical_tree(), request.param), request.param)


def test_the_script_is_clean(steps: Steps, tmp_path: Path) -> None:
    script = tmp_path / "script.sh"
    script.write_text(shell.render(steps))
    for command in (["dash", "-n"], ["shellcheck", "--shell=sh"]):
        done = subprocess.run([*command, script], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_cloud_config_is_one_that_compute_engine_takes(steps: Steps) -> None:
    text = cloud_config.render(steps)
    assert len(text.encode()) < cloud_config.USER_DATA_LIMIT
    assert all(isinstance(file["permissions"], str) for file in yaml.safe_load(text)["write_files"])


def test_without_a_root_the_plan_is_for_a_merged_usr_and_for_root_too() -> None:
    after = {
        change.path: change.after
        for change in steps_of(readings.plan(typical_tree(), Profile()), Profile()).changes
    }
    assert "/usr/lib/udev/bind_to_vfio_pci.sh" in after
    assert not any(path.startswith(("/lib/", "/bin/", "/sbin/")) for path in after)
    limits = after["/etc/security/limits.d/99-tpu-image.conf"]
    assert isinstance(limits, File)
    assert b"\nroot            hard    memlock" in limits.content
