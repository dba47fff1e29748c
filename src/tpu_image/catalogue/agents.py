"""What there is to know of an agent: what judges one is loaded for an image that is to hold it."""

from __future__ import annotations

from typing import NamedTuple


class Agent(NamedTuple):
    """An agent that Google publishes as a container image and as a classic snap."""

    name: str
    """As in a sentence: ``vBar agent``."""
    program: str
    """Its program, which is also the last part of the image's name."""
    image: str
    """The image that the document names."""
    snap: str
    arguments: tuple[str, ...] = ()
    """The arguments that the document gives it, each of them needed as it stands."""
    port: int = 0
    """The TCP port that it listens on; 0 where none is known."""
    unit: str = ""
    """The service of ours that runs it."""
    needs_root: bool = True
    """Whether it does its work as root alone."""
    configuration: str = ""
    """Where in a container its configuration is looked for; empty where it has none."""

    def is_image(self, reference: str) -> bool:
        """Whether a reference names its image, from whatever registry and of whatever version."""
        return repository(reference) == self.program


def repository(reference: str) -> str:
    """Give the last part of a reference's name: ``vbar_control_agent``."""
    return reference.partition("@")[0].rpartition("/")[2].partition(":")[0]
