"""What can go wrong with downloads and the cache; each error is one line: what, where, what to do now."""

from __future__ import annotations


class CacheError(Exception):
    """The cache cannot be used as asked."""


class DownloadError(Exception):
    """A file cannot be had."""
