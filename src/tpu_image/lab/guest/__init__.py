"""What runs inside the guest: programs for a bare Python 3.8, and the unit that starts them.

They are put into the throw-away overlay as they are, and import nothing of this package.
"""

from __future__ import annotations

from pathlib import Path

FILES = ("binding.py", "locked_memory.py", "probe.py", "start.sh", "vfio.py")
"""What the guest runs, below :data:`FOLDER`."""

FOLDER = "/etc/tpu-image-lab"
"""Where it lies in the guest: on the root file system, whatever else is mounted."""

UNIT = "tpulab.service"

PORT = "tpu-image.lab"
"""Name of the virtio-serial port that the guest reports through."""


def read(name: str) -> bytes:
    """Give the content of a file of this folder."""
    return Path(__file__).with_name(name).read_bytes()
