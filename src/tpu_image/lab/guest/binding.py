"""Tell when udev had each TPU function bound, and what processor time that takes: ``binding.py SCRIPT``.

The script that bound them at boot ran among dozens of other programs of udev, whose time the clock counts as well. So
one function is bound anew. Each line is an object of the kind ``task``.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time

MARKS = "/run/tpu-image/iommu-groups"
"""Where the script marks groups before it binds, with links to functions."""
UNBIND = "/sys/bus/pci/drivers/vfio-pci/unbind"
NODES = "/dev/vfio"
"""Where it changes the mode of the groups' nodes in the end."""


def used() -> float:
    """Give the processor seconds of the children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def bind_anew(script: str, address: str) -> float | None:
    """Take a function from vfio-pci and have the script bind it; give processor seconds, None where that failed."""
    try:
        with open(UNBIND, "w", encoding="ascii") as file:
            file.write(address)
        before = used()
        subprocess.run([script, address], stdout=subprocess.DEVNULL, timeout=100, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr)
        return None
    return used() - before


def main(script: str) -> int:
    """Print a line for each marked group that has a node."""
    offset = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
    bound = []
    for group in sorted(os.listdir(MARKS)) if os.path.isdir(MARKS) else ():
        mark, node = MARKS + "/" + group, NODES + "/" + group
        if os.path.exists(node):
            began, ended = os.lstat(mark).st_mtime - offset, os.stat(node).st_ctime - offset
            bound.append((os.path.basename(os.readlink(mark)), began, ended))
    cpu = bind_anew(script, bound[0][0]) if bound else 0.0
    for address, began, ended in bound:
        state = {"state": "active", "result": "success", "status": ""}
        line = dict(state, kind="task", unit="binding of " + address, started=began, finished=ended, cpu=cpu)
        print(json.dumps(line))
    return cpu is None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
