"""Images that are being brought into the cache are not cleaned away from under their pull."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpu_image.agents import registry
from tpu_image.cache_folder import subfolder
from tpu_image.downloads import cache

DIGEST = "sha256:" + "0" * 64


def test_a_pull_keeps_the_images_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with registry._locked(subfolder("containers"), DIGEST) as folder:
        folder.mkdir()
        (entry,) = cache.entries()
        assert not cache.remove(entry)
        assert folder.is_dir()
    assert cache.remove(entry)
    assert cache.entries() == []
