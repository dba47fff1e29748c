"""prerequisites.python and prerequisites.gcloud: there, and able to run."""

from __future__ import annotations

import pytest

from case_trees import program
from tpu_image.catalogue.prerequisites import GcloudPresent, PythonPresent
from tpu_image.catalogue.requirement import Profile, Status, Verdict
from tpu_image.trees.memory import File, MemoryTree, Node, Symlink

X86 = File(program("x86_64"), 0o755)
DEBIAN: dict[str, Node] = {"/etc/os-release": File(b"ID=debian\n"), "/bin/sh": X86}
FEDORA: dict[str, Node] = {"/etc/os-release": File(b"ID=rocky\nID_LIKE='rhel fedora'\n"), "/bin/sh": X86}
SCRIPT = File(b"#!/bin/sh\nexec python3\n", 0o755)
SEED = "/var/lib/snapd/seed"
SEED_YAML = b"snaps:\n  -\n    name: google-cloud-cli\n    file: google-cloud-cli_300.snap\n"


def python(nodes: dict[str, Node]) -> Verdict:
    return PythonPresent().inspect(MemoryTree({**DEBIAN, **nodes}), Profile())


def gcloud(nodes: dict[str, Node]) -> Verdict:
    return GcloudPresent().inspect(MemoryTree({**DEBIAN, **nodes}), Profile())


@pytest.mark.parametrize(
    "nodes",
    [
        {"/usr/bin/python3": X86},
        {"/usr/local/bin/python3": Symlink("/opt/python/bin/python3.12"), "/opt/python/bin/python3.12": X86},
        {"/usr/bin/python3": Symlink("python3.11"), "/usr/bin/python3.11": X86},
        {"/usr/local/bin/python3": Symlink("gone"), "/usr/bin/python3": X86},
        {"/usr/bin/python3": File(b"#! /bin/sh -e\n", 0o755)},
        {"/usr/bin/python3": File(b"#!/usr/bin/env sh\n", 0o755), "/usr/bin/env": X86, "/usr/bin/sh": X86},
    ],
)
def test_a_python_that_can_run_holds(nodes: dict[str, Node]) -> None:
    assert python(nodes).status is Status.PASS, python(nodes)


@pytest.mark.parametrize(
    ("nodes", "mention"),
    [
        ({}, "not on the PATH"),
        ({"/opt/bin/python3": X86}, "not on the PATH"),
        ({"/usr/bin/python3": Symlink("python3.9")}, "a link to python3.9"),
        ({"/usr/bin/python3": File(program("x86_64"), 0o644)}, "not executable"),
        ({"/usr/bin/python3": File(program("aarch64"), 0o755)}, "aarch64"),
        ({"/usr/bin/python3": File(b"#!/opt/python\n", 0o755)}, "/opt/python"),
        ({"/usr/bin/python3": File(b"#!/usr/bin/python3\n", 0o755)}, "too many scripts"),
        ({"/usr/bin/python3": File(b"#!/usr/bin/env pypy\n", 0o755), "/usr/bin/env": X86}, "pypy"),
        ({"/usr/bin/python3": File(b"", 0o755)}, "neither"),
        ({"/usr/bin/python3/x": X86}, "directory"),
    ],
)
def test_a_python_that_cannot_run_fails(nodes: dict[str, Node], mention: str) -> None:
    verdict = python(nodes)
    assert verdict.status is Status.FAIL
    assert mention in verdict.message
    assert verdict.remedy == "in the image: apt-get install python3"


def test_the_remedy_is_the_distributions_own() -> None:
    verdict = PythonPresent().inspect(MemoryTree(FEDORA), Profile())
    assert verdict.remedy == "in the image: dnf install python3"


@pytest.mark.parametrize(
    "nodes",
    [
        {
            "/usr/bin/gcloud": Symlink("../lib/google-cloud-sdk/bin/gcloud"),
            "/usr/lib/google-cloud-sdk/bin/gcloud": SCRIPT,
        },
        {"/usr/local/bin/gcloud": SCRIPT},
        {"/snap/bin/gcloud": Symlink("/usr/bin/snap"), "/usr/bin/snap": X86},
        {"/var/lib/snapd/snaps/google-cloud-cli_300.snap": File(b"hsqs")},
        {
            f"{SEED}/seed.yaml": File(SEED_YAML),
            f"{SEED}/snaps/google-cloud-cli_300.snap": File(b"hsqs"),
            "/usr/lib/snapd/snapd": X86,
        },
    ],
)
def test_gcloud_holds_however_it_came(nodes: dict[str, Node]) -> None:
    assert gcloud(nodes).status is Status.PASS, gcloud(nodes)


@pytest.mark.parametrize(
    ("nodes", "mention"),
    [
        ({}, "not on the PATH"),
        (
            {"/usr/bin/gcloud": Symlink("/usr/lib/google-cloud-sdk/bin/gcloud")},
            "/usr/lib/google-cloud-sdk/bin/gcloud",
        ),
        ({f"{SEED}/seed.yaml": File(SEED_YAML), "/usr/lib/snapd/snapd": X86}, "not on the PATH"),
        (
            {f"{SEED}/seed.yaml": File(SEED_YAML), f"{SEED}/snaps/google-cloud-cli_300.snap": File(b"")},
            "not on",
        ),
        ({f"{SEED}/seed.yaml": File(b"#" + SEED_YAML[7:]), "/usr/lib/snapd/snapd": X86}, "not on the PATH"),
    ],
)
def test_gcloud_that_is_absent_or_broken_fails(nodes: dict[str, Node], mention: str) -> None:
    verdict = gcloud(nodes)
    assert verdict.status is Status.FAIL
    assert mention in verdict.message


@pytest.mark.parametrize(
    "folder", ["/usr/lib/google-cloud-sdk", "/opt/google-cloud-sdk", "/usr/local/google-cloud-sdk"]
)
def test_an_unpacked_archive_must_be_linked_into_the_path(folder: str) -> None:
    verdict = gcloud({f"{folder}/bin/gcloud": SCRIPT})
    assert verdict.status is Status.FAIL
    assert verdict.remedy == f"in the image: ln -s {folder}/bin/gcloud /usr/bin/gcloud"
    assert (
        gcloud({f"{folder}/bin/gcloud": SCRIPT, "/usr/bin/gcloud": Symlink(f"{folder}/bin/gcloud")}).status
        is Status.PASS
    )
