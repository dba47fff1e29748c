"""What a software bill of materials lists of an image: the distribution, and its Debian packages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import quote

from tpu_image.trees.base import Tree

STATUS = "/var/lib/dpkg/status"
STATUS_LIMIT = 16 * 1024 * 1024
"""Bytes of the list of installed packages; some 5,000 of them take 6 MB."""


class Package(NamedTuple):
    """An installed Debian package, as dpkg names it."""

    name: str
    version: str
    architecture: str

    def purl(self, distribution: str) -> str:
        """Give its package URL (github.com/package-url/purl-spec, type deb)."""
        name, version, architecture = (_quoted(part, safe=":~.-_") for part in self)
        return f"pkg:deb/{_quoted(distribution)}/{name}@{version}?arch={architecture}"


def _quoted(text: str, safe: str = "") -> str:
    return quote(text, safe, errors="surrogateescape")  # bytes that are no UTF-8 too


def packages_of(tree: Tree) -> tuple[Package, ...]:
    """Give the Debian packages that are installed, sorted; empty for another package manager."""
    names = ("Package", "Version", "Architecture")
    return tuple(
        sorted({Package(*(fields.get(name, "").strip() for name in names)) for fields in installed(tree)})
    )


def installed(tree: Tree) -> Iterator[dict[str, str]]:
    """Give what dpkg has written down of each installed package: the first lines of its fields, by name."""
    text = tree.read_text_if_present(STATUS, limit=STATUS_LIMIT) or ""
    for paragraph in text.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in paragraph.split("\n") if ": " in line and line[0] != " "
        )
        if fields.get("Status", "").endswith(" installed"):
            yield fields
