"""Names of images in registries: ``HOST/PATH:TAG@DIGEST`` (distribution's reference grammar, as Docker reads it)."""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from tpu_image.agents.errors import AgentError

_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    r"(?P<host>[A-Za-z0-9.-]+(?::[0-9]{1,5})?|\[[0-9a-fA-F:]+\](?::[0-9]{1,5})?)/"
    rf"(?P<path>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_LENGTH_LIMIT = 512

GOOGLE = ("gcr.io", "pkg.dev")
"""Registries, and domains of registries, that take the token of a Google service account."""


class Reference(NamedTuple):
    """A name that leads to one image; ``digest`` is empty where only a tag says which."""

    host: str
    path: str
    tag: str
    digest: str

    @property
    def name(self) -> str:
        """Without tag and digest."""
        return f"{self.host}/{self.path}"

    @property
    def is_google(self) -> bool:
        """Whether the registry is Google's."""
        host = self.host.partition(":")[0]
        return any(host == domain or host.endswith(f".{domain}") for domain in GOOGLE)

    @property
    def is_loopback(self) -> bool:
        """Whether the registry is on this machine, where Docker asks for no TLS either."""
        host = self.host.rpartition(":")[0] if ":" in self.host.rpartition("]")[2] else self.host
        try:
            return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
        except ValueError:
            return False

    def pinned(self, digest: str) -> str:
        """Give the name by digest, which always leads to the same image."""
        return f"{self.name}@{digest}"

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag else ""
        return f"{self.name}{tag}@{self.digest}" if self.digest else f"{self.name}{tag or ':latest'}"


def parse_reference(text: str) -> Reference:
    """Read a reference; the registry must be named, so that nothing goes to Docker Hub by mistake.

    Raises:
        AgentError: it is none.
    """
    match = _REFERENCE.fullmatch(text) if len(text) <= _LENGTH_LIMIT else None
    host = match["host"] if match else ""
    if match is None or not ("." in host or ":" in host or host == "localhost"):
        raise AgentError(
            "is neither a file nor the name of an image",
            text[:80],
            "give REGISTRY/PATH:TAG, an archive, an OCI layout or a directory",
        )
    return Reference(host, match["path"], match["tag"] or "", match["digest"] or "")
