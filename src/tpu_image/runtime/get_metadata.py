"""``get-vm-metadata.py KEY [DEFAULT [TYPE]]``: one value of this machine's metadata, as it is.

As in the document, TYPE is the part of the path below ``instance/`` and is ``attributes`` when not given, and
DEFAULT is printed for a key that is not set. Every other failure is one, with an exit status that says so.
"""

from __future__ import annotations

from urllib.parse import quote

from tpu_image.runtime.metadata import MetadataServer, NotSetError

_UNQUOTED = "/?=&,:@+"
"""Kept, so that queries such as ``?recursive=true`` can be asked."""


def get_metadata(
    server: MetadataServer, key: str, default: str | None, directory: str = "attributes"
) -> bytes:
    """Read the value of a key.

    Raises:
        MetadataError: it could not be read, or is not set and there is no default.
    """
    try:
        return server.read("instance/" + quote(f"{directory}/{key}", _UNQUOTED, errors="surrogateescape"))
    except NotSetError:
        if default is None:
            raise
        return default.encode("utf-8", "surrogateescape")
