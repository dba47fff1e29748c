"""The lab's metadata server for tests of its readers: one attribute, and the faults that are met before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tpu_image.lab.metadata.faults import Fault
from tpu_image.lab.metadata.machine import Machine
from tpu_image.lab.metadata.server import MetadataServer, serving

PATH = "/computeMetadata/v1/instance/attributes/"


@contextmanager
def metadata(attributes: Mapping[str, str], *faults: str | Fault) -> Iterator[MetadataServer]:
    """Serve attributes of the instance; a fault that is named lasts for ever."""
    met = [Fault(fault) if isinstance(fault, str) else fault for fault in faults]
    with serving(Machine(attributes=attributes), met) as server:
        yield server
