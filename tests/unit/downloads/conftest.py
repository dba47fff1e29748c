"""A cache of the test's own, and a server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpu_image import cache_folder
from web_server import site

__all__ = ["site"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder is empty, and nothing is held from the test before."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("http_proxy", "https_proxy", "all_proxy", "TPU_IMAGE_CACHE_LIMIT"):
        monkeypatch.delenv(name, raising=False)
    for path in list(cache_folder._held):
        cache_folder.release(path)
    return tmp_path / "cache" / "tpu-image"
