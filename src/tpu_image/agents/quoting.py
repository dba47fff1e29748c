"""Words and values in systemd's unit files, so that they mean what they are: systemd.syntax(7), systemd.unit(5)."""

from __future__ import annotations

_ESCAPED = {"\\": "\\\\", '"': '\\"'}
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-+=:,./@{}$%~^")


def word(text: str) -> str:
    """A word of ``ExecStart=``: no specifier and no variable is filled in, no blank divides it."""
    doubled = text.replace("%", "%%").replace("$", "$$")
    return doubled if text and set(text) <= _PLAIN else _quoted(doubled)


def setting(text: str) -> str:
    """A value of ``Environment=`` and the like, in which ``$`` means nothing."""
    return _quoted(text.replace("%", "%%"))


def path(text: str) -> str:
    """A path that is a whole value."""
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    escaped = "".join(
        _ESCAPED.get(c) or (c if c.isprintable() or ord(c) > 127 else f"\\x{ord(c):02x}") for c in text
    )
    return f'"{escaped}"'
