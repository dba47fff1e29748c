"""Compute Engine's services in the guest's network: the metadata server, and the name server that knows it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence

from tpu_image.lab import dns
from tpu_image.lab.chips import Chips
from tpu_image.lab.enclosure import Enclosure
from tpu_image.lab.metadata import server, tpu_attributes
from tpu_image.lab.metadata.faults import Fault
from tpu_image.lab.metadata.machine import GUEST_ADDRESS, ZONE, Machine

UNKNOWN_TYPE = "custom-tpu"
"""Machine type of a mixture of chips that Compute Engine does not have."""


@contextlib.contextmanager
def serving(
    enclosure: Enclosure, chips: Chips, metadata: Mapping[str, str], faults: Sequence[Fault]
) -> Iterator[server.MetadataServer]:
    """Answer the guest at the addresses that it knows; the sockets are closed in the end."""
    described = machine_of(chips, metadata)
    known = dns.names(described.host_name, GUEST_ADDRESS)
    with (
        dns.serving(enclosure.dns, enclosure.dns_stream, known),
        server.serving(described, faults, enclosure.http) as metadata_server,
    ):
        yield metadata_server


def machine_of(chips: Chips, metadata: Mapping[str, str]) -> Machine:
    """Describe the machine that the metadata server speaks of; what the user sets goes before what a TPU has."""
    name = Machine().name
    origin = tpu_attributes.Origin.COMPUTE_ENGINE
    of_tpu = tpu_attributes.attributes(chips, origin=origin, node=name, zone=ZONE, address=GUEST_ADDRESS)
    machine_type = chips.machine_type
    return Machine(
        name,
        machine_type=UNKNOWN_TYPE if machine_type is None else machine_type.name,
        attributes={**of_tpu, **metadata},
    )
