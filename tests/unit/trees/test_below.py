"""A directory of a tree as a root of its own."""

from __future__ import annotations

import pytest

from tpu_image.trees.base import NotFoundError
from tpu_image.trees.below import Below
from tpu_image.trees.memory import File, MemoryTree, Symlink

TREE = MemoryTree(
    {
        "/etc/secret": File(b"outside"),
        "/srv/tree/bin": Symlink("/usr/bin"),
        "/srv/tree/usr/bin/tool": File(b"inside", 0o755),
        "/srv/tree/up": Symlink("../../../etc/secret"),
        "/srv/link": Symlink("tree"),
    }
)


@pytest.mark.parametrize("directory", ["/srv/tree", "/srv/link", "/srv/tree/"])
def test_links_lead_to_places_below(directory: str) -> None:
    below = Below(TREE, directory)
    assert below.read_text("/bin/tool") == "inside"
    assert below.names("/") == ["bin", "up", "usr"]
    assert not below.exists("/etc/secret")
    with pytest.raises(NotFoundError):
        below.read_text("/up")
