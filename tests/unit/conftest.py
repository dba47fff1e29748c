"""What the tests of plans, journals and undo share: the tree of ``plan_cases`` on a disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from disk_trees import folder, materialise, need_root
from plan_cases import NODES


@pytest.fixture
def root_user() -> None:
    """Owners can be set."""
    need_root()


@pytest.fixture
def root(root_user: None) -> Iterator[Path]:
    """A root that holds every kind of node."""
    with folder() as path:
        materialise(NODES, path)
        yield path
