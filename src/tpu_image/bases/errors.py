"""What can stand in the way of making a base."""

from __future__ import annotations


class BaseError(Exception):
    """A base cannot be made: one line says what, where, and what to do now."""
