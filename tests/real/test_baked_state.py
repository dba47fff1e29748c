"""What is said of an image's state, beside a real Debian root and the real ds-identify."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tpu_image.catalogue.image_state import REQUIREMENTS
from tpu_image.catalogue.requirement import Profile, Status, Verdict
from tpu_image.trees.directory import DirectoryTree

pytestmark = pytest.mark.real

DS_IDENTIFY = "/usr/lib/cloud-init/ds-identify"
REQUIREMENT = {requirement.id: requirement for requirement in REQUIREMENTS}


def judged(requirement: str, root: Path) -> Verdict:
    return REQUIREMENT[requirement].inspect(DirectoryTree(root), Profile())


def test_the_removals_that_the_remedy_names_are_enough(debian_root: Path) -> None:
    (debian_root / "etc/machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    (debian_root / "var/lib/systemd/random-seed").write_bytes(b"seed")
    (debian_root / "root/.bash_history").write_text("ls\n")
    (debian_root / "var/lib/cloud/instances/i-1").mkdir(parents=True)
    (debian_root / "var/lib/cloud/instances/i-1/obj.pkl").write_bytes(b"x")
    (debian_root / "etc/ssh/ssh_host_rsa_key").write_text("key\n")
    verdict = judged("image.identity", debian_root)
    assert verdict.status is Status.WARN
    commands = verdict.remedy.partition("in the image: ")[2]
    subprocess.run(["chroot", debian_root, "/bin/bash", "-ec", commands], check=True)
    assert judged("image.identity", debian_root).status is Status.PASS


def test_the_configuration_of_the_package_is_known_as_such(debian_root: Path) -> None:
    verdict = judged("image.cloud-config", debian_root)
    assert (verdict.status, verdict.message) == (
        Status.PASS,
        "only cloud-init's own configuration is baked in",
    )
    with (debian_root / "etc/cloud/cloud.cfg").open("a") as file:
        file.write("\n\tx: 1\n")
    verdict = judged("image.cloud-config", debian_root)
    assert verdict.status is Status.FAIL
    assert "/etc/cloud/cloud.cfg" in verdict.message


@pytest.mark.parametrize("seeded", [True, False])
def test_a_seed_comes_before_compute_engine_as_ds_identify_has_it(seeded: bool, tmp_path: Path) -> None:
    if not Path(DS_IDENTIFY).exists():
        pytest.fail("install the package cloud-init: this test compares with its ds-identify")
    files = {
        "root/etc/cloud/cloud.cfg": "",
        "root/proc/cmdline": "ro\n",
        "root/sys/class/dmi/id/product_name": "Google Compute Engine\n",
        "root/var/lib/cloud/seed/nocloud/user-data": "#cloud-config\n",
        "bin/systemd-detect-virt": "#!/bin/sh\necho kvm\n",
    }
    if seeded:
        files["root/var/lib/cloud/seed/nocloud/meta-data"] = "instance-id: i\n"
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "bin/systemd-detect-virt").chmod(0o755)
    (tmp_path / "root/run/cloud-init").mkdir(parents=True)
    environment = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "PATH_ROOT": f"{tmp_path}/root"}
    subprocess.run(["sh", DS_IDENTIFY, "--force"], env=environment, check=True, capture_output=True)
    sources = (tmp_path / "root/run/cloud-init/cloud.cfg").read_text()
    assert sources == f"datasource_list: [ {'NoCloud, ' if seeded else ''}GCE, None ]\n"
    status = judged("image.cloud-config", tmp_path / "root").status
    assert status is (Status.WARN if seeded else Status.PASS)
