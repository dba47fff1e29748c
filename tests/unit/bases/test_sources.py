from __future__ import annotations

from pathlib import Path

import pytest

from tpu_image.bases import sources
from tpu_image.bases.errors import BaseError
from tpu_image.bases.releases import find

BOOKWORM, NOBLE = find("debian:bookworm"), find("ubuntu:24.04")
PUBLIC = ("http://deb.debian.org/debian", "http://deb.debian.org/debian-security")

MIRRORS = {
    "its own mirror": (
        "Debian\tbookworm\thttp://mirror/debian/\nDebian\tbookworm-security\thttp://mirror/debian-security/",
        ("http://mirror/debian", "http://mirror/debian-security"),
    ),
    "the first of two": (
        "Debian\tbookworm\thttp://one/debian/\nDebian\tbookworm\thttp://two/debian/",
        ("http://one/debian", PUBLIC[1]),
    ),
    "another release of the same distribution": (
        "Debian\ttrixie\thttp://mirror/debian/",
        ("http://mirror/debian", PUBLIC[1]),
    ),
    "before the first update": (
        "\tbookworm\thttp://mirror/debian/\n\tbookworm-updates\thttp://mirror/debian/\n"
        "\tbookworm-security\thttp://mirror/debian-security/\n\tbookworm\thttps://download.docker.com/linux/debian/",
        ("http://mirror/debian", "http://mirror/debian-security"),
    ),
    "packages of others": (
        "Docker\tbookworm\thttps://download.docker.com/linux/debian/\n\tnodistro\thttp://x/",
        PUBLIC,
    ),
    "another distribution": (
        "Ubuntu\tnoble\thttp://mirror/ubuntu/\n\tnoble-updates\thttp://mirror/ubuntu/",
        PUBLIC,
    ),
    "nothing": ("", PUBLIC),
    "nonsense": ("a\nb\tc", PUBLIC),
}


@pytest.mark.parametrize(("targets", "expected"), MIRRORS.values(), ids=MIRRORS)
def test_packages_come_from_where_the_machine_has_its_own(targets: str, expected: tuple[str, str]) -> None:
    assert sources.choose_mirrors(BOOKWORM, targets, {}) == expected


def test_a_mirror_of_the_environment_goes_first() -> None:
    named = {"TPU_IMAGE_DEBIAN_MIRROR": "http://m/debian/", "TPU_IMAGE_UBUNTU_MIRROR": "http://m/ubuntu"}
    assert sources.choose_mirrors(BOOKWORM, "Debian\tbookworm\thttp://x/", named) == (
        "http://m/debian",
        "http://m/debian-security",
    )
    assert sources.choose_mirrors(NOBLE, "", named) == ("http://m/ubuntu", "http://m/ubuntu")


def test_missing_keys_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "KEYRINGS", tmp_path)
    with pytest.raises(BaseError, match=r"ubuntu:24\.04: the keys .*; run: apt-get install ubuntu-keyring"):
        sources.require_keyring(NOBLE)


def test_proxies_of_the_machine_are_taken_and_its_other_settings_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        'Acquire::http::Proxy "http://proxy:3142/";',
        'Acquire::https::Proxy::host "DIRECT";',
        'Acquire::http::Proxy-Auto-Detect "/usr/bin/auto";',
        'Acquire::Check-Date "false";',
        'DPkg::Post-Invoke:: "rm -f /x";',
        'Acquire::Languages "none";',
    ]
    (tmp_path / "apt-config").write_text("#!/bin/sh\ncat << 'END'\n" + "\n".join(lines) + "\nEND\n")
    (tmp_path / "apt-get").write_text("#!/bin/sh\n")
    for tool in tmp_path.iterdir():
        tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    taken = sources.sources_for(BOOKWORM).options
    assert [line for line in lines if line in taken] == lines[:4]
