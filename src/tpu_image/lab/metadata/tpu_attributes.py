"""The attributes by which a machine learns what TPU it is: ``tpu-env`` in its two shapes, and those beside it.

The keys are those seen on machines of the Cloud TPU API, which quotes every value, and of Compute Engine, which quotes
none; readers are the boot runtime, jax, torch_xla and libtpu.
"""

from __future__ import annotations

import enum

from tpu_image.lab.chips import Chips

ATTRIBUTE = "tpu-env"
ATTRIBUTES = (ATTRIBUTE, "accelerator-type", "agent-worker-number", "worker-id", "worker-network-endpoints")
"""What a machine with TPUs has, and no other."""


class Origin(enum.Enum):
    """Who made the machine, and so which shape ``tpu-env`` has."""

    COMPUTE_ENGINE = "compute-engine"
    TPU_API = "tpu-api"


_METRICS_PORT = 8431
"""The first of libtpu's ports for metrics, one for each chip."""


def attributes(chips: Chips, *, origin: Origin, node: str, zone: str, address: str) -> dict[str, str]:
    """Give the attributes of a slice of one machine.

    Args:
        chips: what it has; of a mixture, which no real machine is, the first generation is told.
        origin: who made the machine.
        node: its name.
        zone: where it is, without a path.
        address: its IPv4 address, where its peers would find it.
    """
    generation, count = chips.counts[0]
    return {
        ATTRIBUTE: tpu_environment(chips, origin=origin, node=node, zone=zone),
        "accelerator-type": generation.accelerator_type(count),
        "agent-worker-number": "0",
        "worker-id": "0",
        "worker-network-endpoints": f"unknown:unknown:{address}",
    }


def tpu_environment(chips: Chips, *, origin: Origin, node: str, zone: str) -> str:
    """Write ``tpu-env``: a mapping in YAML, its keys in order."""
    values = _common(chips, zone) | (_of_tpu_api(node) if origin is Origin.TPU_API else {})
    quote = "'" if origin is Origin.TPU_API else ""
    return "".join(f"{key}: {quote}{values[key]}{quote}".rstrip() + "\n" for key in sorted(values))


def _common(chips: Chips, zone: str) -> dict[str, str]:
    generation, count = chips.counts[0]
    topology = generation.topology(count)
    bounds = ",".join([*topology.split("x"), "1"][:3])
    wrap = ",".join(["false"] * 3)
    return {
        "ACCELERATOR_TYPE": generation.accelerator_type(count),
        "ALT": "false",
        "CHIPS_PER_HOST_BOUNDS": bounds,
        "HOST_BOUNDS": "1,1,1",
        "TOPOLOGY": topology,
        "TPU_CHIPS_PER_PROCESS_BOUNDS": bounds,
        "TPU_PROCESS_BOUNDS": "1,1,1",
        "TPU_RUNTIME_METRICS_PORTS": ",".join(str(_METRICS_PORT + chip) for chip in range(count)),
        "TPU_TOPOLOGY_ALT": "false",
        "TPU_TOPOLOGY_WRAP": wrap,
        "TYPE": generation.name.upper(),
        "WORKER_ID": "0",
        "WRAP": wrap,
        "ZONE": zone,
    }


def _of_tpu_api(node: str) -> dict[str, str]:
    return {
        "CONSUMER_PROJECT_ID": "tpu-image-lab",
        "CONSUMER_PROJECT_NUMBER": "123456789012",
        "HEALTH_AGENT_DOCKER_URL": "gcr.io/cloud-tpu-v2-images/tpu_agents:stable",
        "NODE_ID": node,
        "RUNTIME_VERSION": "v2-alpha-tpu",
        "UID": "4242424242424242424",
        "VBARCONTROL_AGENT_DOCKER_URL": "",
    }
