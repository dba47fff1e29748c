"""support.distribution and support.architecture."""

from __future__ import annotations

import pytest

from case_trees import program
from tpu_image.catalogue import hardware
from tpu_image.catalogue.requirement import Profile, Status
from tpu_image.catalogue.support import SupportedArchitecture, SupportedDistribution
from tpu_image.trees.memory import File, MemoryTree, Node, Symlink

JAMMY = 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 22.04.5 LTS"\nID=ubuntu\nVERSION_ID="22.04"\n'
NOBLE = JAMMY.replace("22.04", "24.04")


@pytest.mark.parametrize(
    ("text", "generations", "status", "mentions"),
    [
        (JAMMY, ["v5e", "v5p", "v6e"], Status.PASS, ["Ubuntu 22.04.5 LTS"]),
        (NOBLE, ["tpu7x"], Status.PASS, []),
        (JAMMY, ["v6e", "tpu7x"], Status.WARN, ["Ubuntu 24.04 for tpu7x"]),
        (NOBLE, ["v5p", "v6e", "tpu7x"], Status.WARN, ["Ubuntu 22.04 for v5p, v6e"]),
        (JAMMY, ["v4"], Status.WARN, ["no release for v4"]),
        ("ID=debian\nVERSION_ID='12'\nNAME=Debian\n", ["v6e"], Status.WARN, ["Debian"]),
        ("ID=linuxmint\nID_LIKE=ubuntu\nVERSION_ID=22.04\n", ["v6e"], Status.WARN, []),
        ("", ["v6e"], Status.WARN, []),
    ],
)
def test_a_release_is_certified_or_warned_about(
    text: str, generations: list[str], status: Status, mentions: list[str]
) -> None:
    profile = Profile(generations=tuple(hardware.generation(name) for name in generations))
    tree = MemoryTree({"/usr/lib/os-release": File(text.encode())})
    verdict = SupportedDistribution().inspect(tree, profile)
    assert verdict.status is status
    assert all(mention in verdict.message for mention in mentions), verdict.message


def test_no_os_release_warns() -> None:
    assert SupportedDistribution().inspect(MemoryTree(), Profile()).status is Status.WARN


@pytest.mark.parametrize(
    ("nodes", "status"),
    [
        ({"/bin/sh": Symlink("dash"), "/bin/dash": File(program("x86_64"), 0o755)}, Status.PASS),
        ({"/bin/sh": File(program("aarch64"), 0o755)}, Status.FAIL),
        (
            {"/usr/lib/systemd/systemd": File(program("aarch64")), "/bin/sh": File(program("x86_64"))},
            Status.FAIL,
        ),
        ({"/bin/sh": File(b"\x7fELF" + bytes([2, 2, 1]) + bytes(11) + b"\0\x3e")}, Status.PASS),
        ({"/bin/sh": File(b"\x7fELF" + bytes([2, 1, 1]) + bytes(11) + b"\xff\xff")}, Status.FAIL),
        ({"/bin/sh": File(b"\x7fELF\2")}, Status.UNKNOWN),
        ({"/bin/sh": File(b"#!/bin/busybox\n")}, Status.UNKNOWN),
        ({"/bin/sh": Symlink("nowhere")}, Status.UNKNOWN),
        ({}, Status.UNKNOWN),
    ],
)
def test_programs_say_which_processor_the_image_is_for(nodes: dict[str, Node], status: Status) -> None:
    assert SupportedArchitecture().inspect(MemoryTree(nodes), Profile()).status is status


def test_a_processor_that_tpus_do_not_have_fails_even_where_the_profile_names_it() -> None:
    tree = MemoryTree({"/bin/sh": File(program("aarch64"), 0o755)})
    verdict = SupportedArchitecture().inspect(tree, Profile(architecture="aarch64"))
    assert verdict.status is Status.FAIL
    assert "aarch64" in verdict.message
