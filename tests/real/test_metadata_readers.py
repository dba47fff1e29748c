"""Readers of Compute Engine's metadata, not ours, on the emulated server: cloud-init's data source and curl."""

from __future__ import annotations

import json
import subprocess

import pytest

from tpu_image.lab import chips
from tpu_image.lab.metadata import tpu_attributes
from tpu_image.lab.metadata.faults import Fault
from tpu_image.lab.metadata.machine import GUEST_ADDRESS, ZONE, Machine
from tpu_image.lab.metadata.server import MetadataServer, serving
from tpu_image.lab.metadata.tpu_attributes import Origin

pytestmark = pytest.mark.real

USER_DATA = "#cloud-config\nruncmd: [[echo, grüß]]\n"
MACHINE = Machine(
    attributes={
        **tpu_attributes.attributes(
            chips.parse("tpu7x:4"), origin=Origin.COMPUTE_ENGINE, node="one", zone=ZONE, address=GUEST_ADDRESS
        ),
        "user-data": USER_DATA,
        "ssh-keys": "cloudinit:ssh-ed25519 AAAA one",
        "enable-guest-attributes": "TRUE",
    },
    project_attributes={"ssh-keys": "cloudinit:ssh-ed25519 BBBB two"},
)

# What the data source does at boot, with the server's address in place of its name.
READ = """
import json, sys
from cloudinit import url_helper
from cloudinit.sources import DataSourceGCE as gce
parameters = type("Parameters", (), {"num_retries": 4, "sec_between_retries": 0.1})
found = gce.read_md(f"http://{sys.argv[1]}/computeMetadata/v1/", parameters, platform_check=False)
gce.GUEST_ATTRIBUTES_URL = f"http://{sys.argv[1]}/computeMetadata/v1/instance/guest-attributes"
gce._write_host_key_to_guest_attributes("ssh-ed25519", "AAAAHOST")
found["user-data"] = (found["user-data"] or b"").decode()
found["keys"] = gce._parse_public_keys(found["meta-data"]["public-keys-data"], "cloudinit")
print(json.dumps(found))
"""


def cloud_init(server: MetadataServer) -> dict[str, object]:
    done = subprocess.run(
        ["/usr/bin/python3", "-c", READ, server.host],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, f"{done.stderr}\ncloud-init is needed: apt-get install cloud-init"
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_cloud_init_finds_the_machine_and_its_user_data() -> None:
    with serving(MACHINE) as server:
        found = cloud_init(server)
        assert server.state.guest_attributes() == {"hostkeys/ssh-ed25519": "AAAAHOST"}
    assert (found["success"], found["user-data"]) == (True, USER_DATA)
    assert found["keys"] == ["ssh-ed25519 AAAA one", "ssh-ed25519 BBBB two"]
    values = found["meta-data"]
    assert isinstance(values, dict)
    assert values["instance-id"] == "4242424242424242424"
    assert values["availability-zone"] == "us-east5-a"
    assert values["local-hostname"] == "tpu-image-lab.us-east5-a.c.tpu-image-lab.internal"
    assert json.loads(values["instance-data"])["accelerator-type"] == "tpu7x-8"


def test_cloud_init_gets_over_a_server_that_is_busy_at_first() -> None:
    with serving(MACHINE, [Fault("503", times=2), Fault("down", times=1)]) as server:
        assert cloud_init(server)["user-data"] == USER_DATA
        assert [one.status for one in server.requests[:4]] == [503, 503, 0, 200]


def test_curl_follows_the_documented_examples() -> None:
    with serving(MACHINE) as server:

        def curl(path: str) -> str:
            url = f"http://{server.host}/computeMetadata/v1/{path}"
            command = ["curl", "-sSL", "--fail", "-H", "Metadata-Flavor: Google", url]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout

        assert curl("instance/attributes/tpu-env").splitlines()[0] == "ACCELERATOR_TYPE: tpu7x-8"
        assert curl("instance/disks").splitlines() == ["0/"]
        assert json.loads(curl("instance/tags")) == []
        assert curl("project/numeric-project-id") == "123456789012"
