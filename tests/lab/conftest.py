"""Images that are booted, one boot after another, and a way to boot them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab_images import by_the_document, edited, tpu_image_of
from tpu_image.catalogue.requirement import Profile
from tpu_image.lab import boot as lab
from tpu_image.lab import chips, faults, qemu
from tpu_image.lab.errors import LabError
from tpu_image.lab.result import BootResult, Outcome

Boot = Callable[..., BootResult]

PATIENCE = 1800.0
"""Seconds that a boot may take where the machine has other work too."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let a test that boots take its time: what it boots has a time limit of its own."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(3 * PATIENCE))


@pytest.fixture(scope="session")
def base() -> Path:
    """A bootable Debian 12."""
    name = os.environ.get("TPU_IMAGE_TEST_BASE", "")
    if not name or not Path(name).is_file():
        pytest.fail("TPU_IMAGE_TEST_BASE names no bootable base image: run these tests through `make test`")
    return Path(name)


@pytest.fixture(scope="session")
def _qemu() -> None:
    """A QEMU that can emulate TPUs."""
    try:
        qemu.find()
    except LabError as error:
        pytest.fail(str(error))


@pytest.fixture(scope="session")
def built(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A TPU image of the base, as Compute Engine imports it."""
    return tpu_image_of(base, tmp_path_factory.mktemp("built") / "tpu.tar.gz")


@pytest.fixture(scope="session")
def documented(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base, changed by following the document to the letter, as a raw disk."""
    folder = tmp_path_factory.mktemp("documented")
    return edited(base, folder / "disk.raw", lambda overlay: by_the_document(overlay, folder))


@pytest.fixture
def boot(_qemu: None) -> Boot:
    """A function that boots an image with chips."""

    def boot(
        image: Path, tpu: str, *, fault: tuple[str, ...] = (), agent: bool = False, **settings: Any
    ) -> BootResult:
        wanted = chips.parse(tpu)
        profile = Profile(generations=wanted.generations, agent_elsewhere=not agent)
        settings = {"timeout": PATIENCE, **settings}
        request = lab.Request(image, wanted, profile, faults=faults.parse(fault), **settings)
        result = lab.boot(request)
        assert result.outcome is Outcome.REPORTED, (result.reason, result.console[-3000:])
        assert result.artefact.unchanged
        return result

    return boot
