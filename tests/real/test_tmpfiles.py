"""systemd-tmpfiles does to a node what a check says that it does."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tpu_image.catalogue.boot_writes import changed_mode, closed_directory
from tpu_image.trees.directory import DirectoryTree

NODE = "/dev/vfio/0"


@pytest.mark.real
@pytest.mark.parametrize(
    "lines",
    [
        "z /dev/vfio/0 0600\nz /dev/vfio/* 0640\n",
        "z /dev/vfio/* 0640\nz /dev/vfio/0 0600\n",
        "z /dev/vfio/[0-9] 0600 root root - -\n",
        "z /dev/* 0700\n",
        "Z /dev/vfio 0640\n",
        "m /dev/vfio/0 0600\n",
        "f /dev/vfio/0 0600\n",
        "z /dev/vfio/0 :0600\n",
        "z /dev/vfio/0 ~0640\n",
        'z "/dev/vfio/0" 0620\n',
        "d /dev/vfio 0700\n",
        "e /dev/vfio 0711\n",
        "z /dev/vfio/1 0600\n",
    ],
)
def test_the_mode_is_the_one_that_systemd_gives(tmp_path: Path, lines: str) -> None:
    assert shutil.which("systemd-tmpfiles"), "install the package systemd"
    node = tmp_path / NODE[1:]
    node.parent.mkdir(parents=True, mode=0o755)
    node.write_text("stands for a device\n")
    node.chmod(0o666)
    configuration = tmp_path / "etc/tmpfiles.d/a.conf"
    configuration.parent.mkdir(parents=True)
    configuration.write_text(lines)
    subprocess.run(["systemd-tmpfiles", f"--root={tmp_path}", "--create"], check=True, timeout=60)
    tree = DirectoryTree(tmp_path)
    told = changed_mode(tree, NODE)
    assert node.stat().st_mode & 0o777 == (0o666 if told is None else told[0])
    assert (closed_directory(tree, NODE) is not None) is (not node.parent.stat().st_mode & 0o001)
