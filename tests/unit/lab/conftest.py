"""Emulated TPU functions for the tests of the protocol."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tpu_image.lab.vfio_user.process import Emulation, emulating
from vfio_user_client import RESET, TPU7X, V6E, Client, connected


@pytest.fixture(scope="module")
def tpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulation]:
    """One server for the whole module: what one test does to it, the others must not notice."""
    names = {"v6e": V6E, "tpu7x-0": TPU7X, "tpu7x-1": TPU7X}
    with emulating(tmp_path_factory.mktemp("tpus"), names) as emulation:
        yield emulation


@pytest.fixture
def client(tpus: Emulation) -> Iterator[Client]:
    with connected(tpus) as client:
        client.ask(RESET)
        yield client
