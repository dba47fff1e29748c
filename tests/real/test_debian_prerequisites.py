"""What is said of a real Debian root before anything is applied."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpu_image.catalogue.gke import HostTools
from tpu_image.catalogue.login_sessions import login_services, sshd_without_pam
from tpu_image.catalogue.prerequisites import GcloudPresent, PythonPresent
from tpu_image.catalogue.requirement import Platform, Profile, Status
from tpu_image.catalogue.support import SupportedArchitecture, SupportedDistribution
from tpu_image.trees.directory import DirectoryTree

pytestmark = pytest.mark.real


def test_a_plain_debian_gets_the_verdicts_that_it_deserves(debian_root: Path) -> None:
    tree = DirectoryTree(str(debian_root))
    expected = {
        SupportedDistribution(): Status.WARN,
        SupportedArchitecture(): Status.PASS,
        PythonPresent(): Status.PASS,
        GcloudPresent(): Status.FAIL,
    }
    found = {requirement: requirement.inspect(tree, Profile()).status for requirement in expected}
    assert found == expected
    missing = HostTools().inspect(tree, Profile(platform=Platform.GKE))
    present = {tool for tool in ("ethtool", "ip", "sysctl", "lspci") if tool not in missing.message}
    on_disk = {p.name for folder in ("sbin", "bin") for p in (debian_root / "usr" / folder).iterdir()}
    assert present == {"ethtool", "ip", "sysctl", "lspci"} & on_disk

    (debian_root / "usr/bin/python3").unlink()
    changed = DirectoryTree(str(debian_root))
    assert PythonPresent().inspect(changed, Profile()).status is Status.FAIL


def test_debians_logins_call_pam_limits(debian_root: Path) -> None:
    tree = DirectoryTree(str(debian_root))
    services = login_services(tree)
    assert {"login", "sshd", "su", "su-l"} <= {service.name for service in services}
    assert all(service.limits_rule for service in services)
    assert sshd_without_pam(tree) is None
    (debian_root / "etc/ssh/sshd_config.d/10-site.conf").write_text("UsePAM no\n")
    evidence = sshd_without_pam(DirectoryTree(str(debian_root)))
    assert evidence is not None
    assert evidence.path == "/etc/ssh/sshd_config.d/10-site.conf"
