"""What can go wrong with downloads; each error is one line: what, where, what to do now."""

from __future__ import annotations


class DownloadError(Exception):
    """A file cannot be had."""
