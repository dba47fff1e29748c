"""Whoever wrote what stands at the document's paths is told when it is replaced."""

from __future__ import annotations

import pytest

from tpu_image.catalogue import environment
from tpu_image.catalogue.bind_script import render
from tpu_image.catalogue.placed import replaced_scripts
from tpu_image.catalogue.requirement import Profile
from tpu_image.plan.change import Change
from tpu_image.trees.memory import File, Node

OURS = File(render(Profile()).encode(), 0o755)
THEIRS = File(b"#!/bin/sh\necho mine\n", 0o755)
BIND_SCRIPT = "/usr/lib/udev/bind_to_vfio_pci.sh"


@pytest.mark.parametrize(
    ("path", "before", "after", "told"),
    [
        (BIND_SCRIPT, THEIRS, OURS, True),
        (BIND_SCRIPT.removeprefix("/usr"), THEIRS, OURS, True),
        (environment.SCRIPT, THEIRS, OURS, True),
        (BIND_SCRIPT, None, OURS, False),
        (BIND_SCRIPT, THEIRS, None, False),
        (BIND_SCRIPT, THEIRS, THEIRS._replace(mode=0o700), False),
        (BIND_SCRIPT, File(OURS.content + b"# an earlier version\n"), OURS, False),
        ("/etc/environment", THEIRS, OURS, False),
    ],
)
def test_a_script_of_somebody_elses_is_named(
    path: str, before: Node | None, after: Node | None, told: bool
) -> None:
    assert list(replaced_scripts([Change(path, before, after)])) == [path] * told
