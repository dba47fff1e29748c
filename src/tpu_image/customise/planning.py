"""The steps that carry out a customisation: which programs run in the image, in which order, and with what."""

from __future__ import annotations

import posixpath

from tpu_image.customise.customisation import Customisation, PythonEnvironment
from tpu_image.customise.session import GIVEN, TIME_LIMIT, Session, Step

APT_OPTIONS = (
    "-y",
    *("-o", "Dpkg::Use-Pty=0"),
    # What stands in the image was put there on purpose: it goes before a package's new default.
    *("-o", "Dpkg::Options::=--force-confdef", "-o", "Dpkg::Options::=--force-confold"),
    # The disk is a scratch copy; a crash throws it away.
    *("-o", "Dpkg::Options::=--force-unsafe-io"),
    *("-o", "Acquire::Retries=3", "-o", "Acquire::Languages=none"),
)

KERNEL_DEFAULT = "/etc/default/grub.d/zz-tpu-image-kernel.cfg"
"""Sorts behind what distributions and clouds put there (``40-force-partuuid.cfg``, ``50-cloudimg-settings.cfg``)."""

UPDATE_GRUB = Step("update-grub", ("/usr/sbin/update-grub",))


def session_of(customisation: Customisation) -> Session:
    """Give the session of a customisation: packages, kernel, removals, Python environments, scripts."""
    files: dict[str, bytes] = {}
    steps: list[Step] = []
    environment = {}
    wanted = (*customisation.packages, *([customisation.kernel] if customisation.kernel else []))
    if customisation.sources:
        files |= _own_sources(customisation.sources)
        environment["APT_CONFIG"] = f"{GIVEN}/apt.conf"
    if wanted:
        steps.append(_apt("update the package lists", "update", "-o", "APT::Update::Error-Mode=any"))
        steps.append(_apt(f"install {' '.join(wanted)}", "install", "--", *wanted))
    if customisation.remove:
        names = customisation.remove
        steps.append(_apt(f"remove {' '.join(names)}", "purge", "--", *names))
    if customisation.kernel:
        steps.append(UPDATE_GRUB)
    folders = {}
    for number, python in enumerate(customisation.environments):
        if python.requirements:
            files[_requirements(number)] = python.requirements
        if python.wheels:
            folders[_wheels(number)] = python.wheels
        steps += _environment_steps(number, python)
    for number, script in enumerate(customisation.scripts, 1):
        name = f"script-{number}"
        files[name] = (
            script.content if script.content.startswith(b"#!") else b"#!/bin/sh -e\n" + script.content
        )
        steps.append(Step(f"run {script.name}", (f"{GIVEN}/{name}",)))
    limit = customisation.time_limit or TIME_LIMIT
    return Session(tuple(steps), files, folders, environment, limit)


def _apt(name: str, *arguments: str) -> Step:
    return Step(name, ("/usr/bin/apt-get", *APT_OPTIONS, *arguments))


def _own_sources(sources: bytes) -> dict[str, bytes]:
    """Have apt read these sources alone (apt.conf(5), "Dir" and APT_CONFIG); the name says the style to it."""
    style = "sources" if b"\nTypes:" in b"\n" + sources else "list"
    configuration = f'Dir::Etc::sourcelist "/dev/null";\nDir::Etc::sourceparts "{GIVEN}/sources";\n'
    return {f"sources/tpu-image.{style}": sources, "apt.conf": configuration.encode()}


def _requirements(number: int) -> str:
    return f"requirements-{number}.txt"


def _wheels(number: int) -> str:
    return f"wheels-{number}"


def _environment_steps(number: int, python: PythonEnvironment) -> list[Step]:
    steps = [Step(f"make {python.path}", (python.python, "-m", "venv", "--", python.path))]
    if not (python.packages or python.requirements):
        return steps
    options = ["--no-input", "--no-cache-dir", "--disable-pip-version-check", "--progress-bar=off"]
    if python.wheels:
        options += ["--no-index", "--find-links", f"{GIVEN}/{_wheels(number)}"]
    if python.requirements:
        options += ["-r", f"{GIVEN}/{_requirements(number)}"]
    interpreter = posixpath.join(python.path, "bin/python")
    arguments = (interpreter, "-m", "pip", "install", *options, "--", *python.packages)
    return [*steps, Step(f"pip install into {python.path}", arguments)]


def default_kernel_session(entry: str, limit: float) -> Session:
    """Give the session that makes an entry of grub.cfg the default; ``entry`` is its id behind its submenus'."""
    content = (
        "# The kernel that the image was made for. Remove this file to boot the newest one. Written by tpu-image.\n"
        f"GRUB_DEFAULT='{entry}'\n"
    )
    install = ("/usr/bin/install", "-D", "-m", "0644", f"{GIVEN}/kernel.cfg", KERNEL_DEFAULT)
    return Session(
        (Step("make the kernel the default", install), UPDATE_GRUB),
        {"kernel.cfg": content.encode()},
        time_limit=limit,
    )
