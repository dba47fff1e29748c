"""Which programs a customisation runs in the image, and in which order."""

from __future__ import annotations

from pathlib import Path

from tpu_image.customise.customisation import Customisation, PythonEnvironment, Script
from tpu_image.customise.planning import session_of

WHOLE = Customisation(
    packages=("nginx",),
    remove=("snapd",),
    kernel="linux-image-cloud-amd64",
    environments=(PythonEnvironment("/opt/jax", ("jax[tpu]",), b"jax==0.6\n", Path("/wheels")),),
    scripts=(Script("one", b"echo one"), Script("two", b"#!/usr/bin/python3\n")),
    sources=b"Types: deb\n",
    time_limit=60,
)


def test_packages_come_first_and_scripts_last() -> None:
    assert [step.name for step in session_of(WHOLE).steps] == [
        "update the package lists",
        "install nginx linux-image-cloud-amd64",
        "remove snapd",
        "update-grub",
        "make /opt/jax",
        "pip install into /opt/jax",
        "run one",
        "run two",
    ]


def test_what_steps_need_is_given_in_memory_and_to_read_alone() -> None:
    session = session_of(WHOLE)
    assert session.files["script-1"] == b"#!/bin/sh -e\necho one"
    assert session.files["script-2"] == b"#!/usr/bin/python3\n"
    assert session.files["requirements-0.txt"] == b"jax==0.6\n"
    assert session.folders == {"wheels-0": Path("/wheels")}
    assert session.time_limit == 60


def test_own_sources_take_the_place_of_the_images() -> None:
    session = session_of(WHOLE)
    assert session.environment == {"APT_CONFIG": "/run/tpu-image/apt.conf"}
    assert session.files["sources/tpu-image.sources"] == b"Types: deb\n"
    one_line = session_of(Customisation(packages=("x",), sources=b"deb http://x y z\n"))
    assert "sources/tpu-image.list" in one_line.files
    assert not session_of(Customisation(packages=("x",))).environment


def test_names_cannot_become_options() -> None:
    for step in session_of(WHOLE).steps:
        if step.name.startswith(("install", "remove", "pip")):
            names = step.arguments[step.arguments.index("--") + 1 :]
            assert names
            assert not any(name.startswith("-") for name in names)


def test_wheels_are_taken_from_their_folder_alone() -> None:
    (step,) = (step for step in session_of(WHOLE).steps if step.name.startswith("pip"))
    assert "--no-index" in step.arguments


def test_nothing_wanted_runs_nothing() -> None:
    assert not session_of(Customisation()).steps
    assert not Customisation().executes
