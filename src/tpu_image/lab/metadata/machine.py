"""The machine that the emulated metadata server speaks of: its tree, with the keys that guests ask for.

Keys: the page "Predefined metadata keys" of Compute Engine. Who asks: cloud-init (id, zone, hostname, attributes;
``sources/DataSourceGCE.py``), the guest agent (everything at once, recursively), client libraries (project, service
account).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from tpu_image.lab.metadata.nodes import Lines, Named, Node, Secret

PROJECT = "tpu-image-lab"
PROJECT_NUMBER = 123456789012
REGION = "us-east5"
ZONE = f"{REGION}-a"

GUEST_ADDRESS = "10.128.0.15"
GATEWAY = "10.128.0.1"
NETMASK = "255.255.255.0"
MAC_ADDRESS = "42:01:0a:80:00:0f"
"""As Compute Engine forms them: 42:01, then the address."""

SERVICE_ACCOUNT = f"{PROJECT_NUMBER}-compute@developer.gserviceaccount.com"
_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)


@dataclass(frozen=True)
class Machine:
    """What distinguishes one emulated machine from another."""

    name: str = "tpu-image-lab"
    machine_type: str = "ct6e-standard-4t"
    identifier: int = 4242424242424242424
    attributes: Mapping[str, str] = field(default_factory=dict)
    project_attributes: Mapping[str, str] = field(default_factory=dict)

    @property
    def host_name(self) -> str:
        """Its internal name, in the zonal form."""
        return f"{self.name}.{ZONE}.c.{PROJECT}.internal"

    def tree(self) -> dict[str, Node]:
        """Give what stands below ``/computeMetadata/v1/``."""
        return {
            "instance": self._instance(),
            "oslogin": {"authenticate": {"sessions": {}}},
            "project": {
                "attributes": Named(self.project_attributes),
                "numeric-project-id": PROJECT_NUMBER,
                "project-id": PROJECT,
            },
            "universe": {"universe-domain": "googleapis.com"},
        }

    def _instance(self) -> dict[str, Node]:
        return {
            "attributes": Named(self.attributes),
            "cpu-platform": "Unknown CPU Platform",
            "description": "",
            "disks": [_disk(self.name)],
            "guest-attributes": Named(),
            "hostname": self.host_name,
            "id": self.identifier,
            "image": f"projects/{PROJECT}/global/images/{self.name}",
            "licenses": [],
            "machine-type": f"projects/{PROJECT_NUMBER}/machineTypes/{self.machine_type}",
            "maintenance-event": "NONE",
            "name": self.name,
            "network-interfaces": [_network_interface()],
            "preempted": "FALSE",
            "remaining-cpu-time": -1,
            "scheduling": {
                "automatic-restart": "FALSE",
                "on-host-maintenance": "TERMINATE",
                "preemptible": "FALSE",
            },
            "service-accounts": Named({"default": _service_account(), SERVICE_ACCOUNT: _service_account()}),
            "tags": Lines((), json_first=True),
            "virtual-clock": {"drift-token": "0"},
            "zone": f"projects/{PROJECT_NUMBER}/zones/{ZONE}",
        }


def _disk(name: str) -> dict[str, Node]:
    kind = {"interface": "SCSI", "mode": "READ_WRITE", "type": "PERSISTENT-BALANCED"}
    return {"device-name": name, "index": 0, **kind}


def _network_interface() -> dict[str, Node]:
    return {
        "access-configs": [{"external-ip": "", "type": "ONE_TO_ONE_NAT"}],
        "dns-servers": Lines(("169.254.169.254",)),
        "forwarded-ips": [],
        "gateway": GATEWAY,
        "ip": GUEST_ADDRESS,
        "ip-aliases": [],
        "mac": MAC_ADDRESS,
        "mtu": 1460,
        "network": f"projects/{PROJECT_NUMBER}/networks/default",
        "nic-type": "VIRTIO_NET",
        "subnetmask": NETMASK,
        "target-instance-ips": [],
    }


def _service_account() -> dict[str, Node]:
    token: dict[str, Node] = {
        "access_token": "ya29.tpu-image-lab",
        "expires_in": 3599,
        "token_type": "Bearer",
    }
    return {
        "aliases": Lines(("default",)),
        "email": SERVICE_ACCOUNT,
        "identity": Secret(_identity_token()),
        "scopes": Lines(_SCOPES),
        "token": Secret(Named(token), json_first=True),
    }


def _identity_token() -> str:
    """A token in the form of the real one (RFC 7519, section 6: unsigned), that no service would take."""
    header = {"alg": "none", "typ": "JWT"}
    claims = {"email": SERVICE_ACCOUNT, "iss": "https://accounts.google.com", "sub": str(PROJECT_NUMBER)}
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in (header, claims)
    ]
    return ".".join([*parts, ""])
