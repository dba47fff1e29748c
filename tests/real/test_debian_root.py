"""The whole tool on a real Debian root, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.real

WAIVED = ("--no-agent", "--waive", "prerequisites.gcloud=not in Debian")
Snapshot = dict[str, tuple[object, ...]]


def tpu_image(*arguments: str | Path, expect: int) -> str:
    """Run the command as a user does and give its standard output."""
    command = [sys.executable, "-m", "tpu_image", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == expect, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def check(root: Path, *options: str, expect: int) -> dict[str, dict[str, Any]]:
    """The verdicts of a check by requirement."""
    report = json.loads(tpu_image("check", root, *options, "--format", "json", expect=expect))
    return {verdict["requirement"]: verdict for verdict in report["verdicts"]}


def failing(verdicts: dict[str, dict[str, Any]]) -> set[str]:
    return {name for name, verdict in verdicts.items() if verdict["status"] in ("fail", "unknown")}


def make_boot_configuration(root: Path) -> None:
    """A grub.cfg as a first boot finds it, since a root that never saw a disk has none."""
    kernel = next((root / "boot").glob("vmlinuz-*")).name
    linux = f"\tlinux\t/boot/{kernel} root=UUID=0b2a5f2c-5f0c-4c9e-9b8a-3f0f3a5d2c11 ro"
    entries = f"menuentry 'Debian' {{\n{linux}  quiet\n}}\nmenuentry 'Recovery' {{\n{linux} single \n}}\n"
    (root / "boot/grub/grub.cfg").write_text(entries)


def test_apply_turns_a_failing_root_into_a_passing_one_and_undo_takes_it_back(
    debian_root: Path, snapshot: Callable[[Path], Snapshot]
) -> None:
    make_boot_configuration(debian_root)
    before = snapshot(debian_root)

    assert {"kernel.thp", "vfio.bind-rules", "limits.memlock"} <= failing(
        check(debian_root, *WAIVED, expect=1)
    )
    assert snapshot(debian_root) == before, "a check wrote something"

    tpu_image("apply", debian_root, *WAIVED, expect=0)
    assert not failing(check(debian_root, *WAIVED, expect=0))

    after = snapshot(debian_root)
    assert "nothing to change" in tpu_image("apply", debian_root, *WAIVED, expect=0)
    assert snapshot(debian_root) == after, "a second apply changed something"

    tpu_image("apply", debian_root, "--undo", expect=0)
    assert snapshot(debian_root) == before


def test_a_dry_run_shows_the_change_and_writes_nothing(
    debian_root: Path, snapshot: Callable[[Path], Snapshot]
) -> None:
    before = snapshot(debian_root)
    shown = tpu_image("apply", debian_root, *WAIVED, "--dry-run", expect=0)
    assert "+++ b/etc/udev/rules.d/99-tpu-vfiopci.rules" in shown
    assert snapshot(debian_root) == before


def test_without_an_agent_apply_says_what_is_missing_and_fails(debian_root: Path) -> None:
    shown = tpu_image("apply", debian_root, "--waive", "prerequisites.gcloud=not in Debian", expect=1)
    assert "vbar.agent" in shown
    assert "--no-agent" in shown


def test_gcloud_as_a_tarball_satisfies_the_prerequisite(debian_root: Path) -> None:
    """A stand-in archive: gcloud is in no Debian suite."""
    program = debian_root / "usr/lib/google-cloud-sdk/bin/gcloud"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho stand-in\n")
    program.chmod(0o755)
    assert check(debian_root, "--only", "prerequisites.gcloud", expect=1)
    os.symlink("../lib/google-cloud-sdk/bin/gcloud", debian_root / "usr/bin/gcloud")
    verdicts = check(debian_root, "--only", "prerequisites.gcloud", expect=0)
    assert verdicts["prerequisites.gcloud"]["status"] == "pass"
