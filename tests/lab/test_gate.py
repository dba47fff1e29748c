"""``tpu-image build --boot`` for real: a passing boot gives the image its name, a failing one does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab_images import built_by

pytestmark = [pytest.mark.matrix, pytest.mark.usefixtures("_qemu")]

SPECIFICATION = """\
base: {base}
output: {output}
profile: {{agent: elsewhere, tpu: v6e}}
waive: {{prerequisites.gcloud: the base has none}}
"""

CLOSING = """\
files:
- path: /usr/local/sbin/closes
  mode: "0755"
  content: |
    #!/bin/sh
    until ls /dev/vfio/[0-9]*; do sleep 1; done
    chmod 0600 /dev/vfio/[0-9]*
- path: /etc/systemd/system/closes.service
  content: |
    [Service]
    Type=oneshot
    ExecStart=/usr/local/sbin/closes
- path: /etc/systemd/system/multi-user.target.d/closes.conf
  content: |
    [Unit]
    Wants=closes.service
"""
"""A service that takes the device nodes away: a check of files does not look into its script, a boot sees the nodes."""


def test_an_image_that_passes_inside_gets_its_name(base: Path, tmp_path: Path) -> None:
    done = built_by(tmp_path, SPECIFICATION.format(base=base, output="tpu.tar.gz"), "--boot")
    assert {path.name for path in tmp_path.iterdir()} == {"tpu-image.yaml", "tpu.tar.gz", "tpu.tar.gz.json"}
    assert "booting: " in done.stderr


def test_an_image_that_only_a_boot_shows_to_be_wrong_gets_none(base: Path, tmp_path: Path) -> None:
    text = SPECIFICATION.format(base=base, output="{path: tpu.qcow2, format: qcow2}")
    done = built_by(tmp_path, text + CLOSING, "--boot", status=1)
    assert {path.name for path in tmp_path.iterdir()} == {"tpu-image.yaml"}
    assert "tpu.qcow2 was not written: it does not hold when it is booted" in done.stderr
    assert "fail     machine.devices" in done.stdout
