"""Files that are written into an image as they stand."""

from __future__ import annotations


def read(name: str) -> str:
    """Give the text of one of them; it may stand inside a zipapp."""
    import pkgutil  # a tenth of the import time of importlib.resources

    return (pkgutil.get_data(__name__, name) or b"").decode()
