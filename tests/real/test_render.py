"""What `render` writes, run on a real Debian root as its readers run it: sh in a chroot, and cloud-init."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tpu_image import cli

pytestmark = pytest.mark.real

PROFILE = ("--no-agent", "--waive", "prerequisites.gcloud=not in Debian")
Snapshot = dict[str, tuple[object, ...]]
JOURNAL = "var/lib/tpu-image"

CLOUD_INIT = """
import subprocess, yaml
from cloudinit import util
from cloudinit.config import cc_write_files
config = yaml.safe_load(open("/user-data"))
cc_write_files.write_files("write_files", config["write_files"], "root:root")
subprocess.run(["sh", "-c", util.shellify(config["runcmd"])], check=False)
"""
"""What the modules write_files and runcmd of cloud-init do with a configuration."""


@pytest.fixture
def roots(unpack_root: Callable[[Path], Path], tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Two copies of a Debian root, each with a boot entry, a /dev/null and an update-grub that tells it ran."""
    both = (unpack_root(tmp_path / "one"), unpack_root(tmp_path / "two"))
    for root in both:
        prepare(root)
    yield both
    for root in both:
        subprocess.run(["rm", "-rf", "--one-file-system", root], check=True)


def prepare(root: Path) -> None:
    os.mknod(root / "dev/null", 0o20666, os.makedev(1, 3))
    kernel = next((root / "boot").glob("vmlinuz-*")).name
    entry = f"menuentry 'Debian' {{\n\tlinux\t/boot/{kernel} root=UUID=0b2a5f2c-5f0c-4c9e-9b8a-3f0f3a5d2c11 ro\n}}\n"
    (root / "boot/grub/grub.cfg").write_text(entry)
    (root / "usr/sbin/update-grub").write_text("#!/bin/sh\necho it ran > /var/update-grub\n")


def tpu_image(*arguments: str | Path) -> int:
    return cli.main([str(argument) for argument in arguments])


def run_in(root: Path, *command: str) -> str:
    """Run a command in a root, and give its messages."""
    done = subprocess.run(
        ["chroot", root, *command], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def run_script(root: Path, script: Path) -> str:
    shutil.copy(script, root / "prepare.sh")
    try:
        return run_in(root, "sh", "/prepare.sh")
    finally:
        (root / "prepare.sh").unlink()


def test_the_script_for_a_root_makes_of_it_what_apply_makes(
    roots: tuple[Path, Path], snapshot: Callable[[Path], Snapshot], tmp_path: Path
) -> None:
    applied, scripted = roots
    script = tmp_path / "prepare.sh"
    assert tpu_image("render", "shell", "--root", scripted, *PROFILE, "-o", script) == 0
    tpu_image("apply", applied, *PROFILE)
    shutil.rmtree(applied / JOURNAL)

    grub_config = (scripted / "boot/grub/grub.cfg").read_text()
    (scripted / "boot/grub/grub.cfg").write_text("# another machine's\n")
    before = snapshot(scripted)
    with pytest.raises(AssertionError, match=r"/boot/grub/grub\.cfg is not the file this was made for"):
        run_script(scripted, script)
    assert difference(snapshot(scripted), before) == {}
    (scripted / "boot/grub/grub.cfg").write_text(grub_config)

    assert "wrote /boot/grub/grub.cfg" in run_script(scripted, script)
    expected = snapshot(applied)
    assert difference(snapshot(scripted), expected) == {}
    assert run_script(scripted, script) == "tpu-image: nothing to change\n"
    assert difference(snapshot(scripted), expected) == {}


def test_the_script_for_any_machine_and_cloud_init_prepare_one_alike(
    roots: tuple[Path, Path], snapshot: Callable[[Path], Snapshot], tmp_path: Path
) -> None:
    scripted, started = roots
    for root in roots:
        (root / "etc/environment").write_text("MINE=1")
    script, user_data = tmp_path / "prepare.sh", started / "user-data"
    assert tpu_image("render", "shell", *PROFILE, "-o", script) == 0
    assert tpu_image("render", "cloud-config", *PROFILE, "-o", user_data) == 0

    run_script(scripted, script)
    assert (scripted / "var/update-grub").exists(), "the boot entries were not made anew"
    assert (scripted / "etc/environment").read_text().startswith("MINE=1\nCLOUDSDK_PYTHON=")
    # The stand-in of update-grub writes no entries: the parameters of the kernel are judged elsewhere.
    waived = [f"--waive=kernel.{name}=judged elsewhere" for name in ("idle", "iommu", "thp")]
    assert tpu_image("check", scripted, *PROFILE, *waived) == 0
    expected = snapshot(scripted)
    assert run_script(scripted, script) == "tpu-image: nothing to change\n"
    assert difference(snapshot(scripted), expected) == {}
    run_in(scripted, "systemd-sysusers")  # cloud-init runs it, a script in a chroot leaves it to the boot

    assert user_data.stat().st_size < 256 * 1024, "more than Compute Engine takes as user-data"
    run_in(started, "cloud-init", "schema", "--config-file", "/user-data")
    run_in(started, "python3", "-B", "-c", CLOUD_INIT)
    user_data.unlink()
    assert difference(snapshot(started), snapshot(scripted)) == {}


def difference(found: Snapshot, expected: Snapshot) -> dict[str, object]:
    """What a machine that cloud-init set up has that the other has not, but for what its commands leave."""
    paths = {path for path in {*found, *expected} if not path.startswith(("run/", "var/log/"))}
    return {
        path: (found.get(path), expected.get(path)) for path in paths if found.get(path) != expected.get(path)
    }
