"""Stands in for the kernel while a bind script runs: a /sys whose files for binding are pipes.

Run as a program in a private mount namespace: ``vfio_kernel.py SETTINGS`` (JSON) builds /sys and /dev,
answers what is written to ``unbind`` and ``drivers_probe``, and runs ``command`` of the settings. It prints
as JSON what became of everything.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

ADDRESS = "0000:00:04.0"
GROUP = "3"
GROUPS = Path("/sys/kernel/iommu_groups")
DRIVERS = Path("/sys/bus/pci/drivers")


INTERRUPTS = ("vfio_iommu_type1", "iommufd")
"""Modules that bind nothing where interrupts are not remapped, unless told to."""


class Kernel:
    """One PCI function, with or without an IOMMU and a driver."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.settings = settings
        self.address: str = settings.get("address", ADDRESS)
        self.function = Path(f"/sys/devices/pci0000:00/{self.address}")
        self.log: list[str] = []

    def build(self) -> None:
        for directory in (
            self.function,
            GROUPS / GROUP / "devices",
            "/sys/bus/pci/devices",
            "/dev/vfio/devices",
        ):
            Path(directory).mkdir(parents=True, exist_ok=True)
        for driver in ("gasket", *(["vfio-pci"] if self.settings.get("has_vfio", True) else [])):
            (DRIVERS / driver).mkdir(parents=True)
            self.pipe(DRIVERS / driver / "unbind", self.unbind)
        self.pipe(Path("/sys/bus/pci/drivers_probe"), self.probe)
        Path(f"/sys/bus/pci/devices/{self.address}").symlink_to(self.function)
        (self.function / "driver_override").write_text("(null)\n")
        (GROUPS / GROUP / "devices" / self.address).symlink_to(self.function)
        if self.settings.get("group_name"):
            (GROUPS / GROUP / "name").write_text(self.settings["group_name"] + "\n")
        if self.settings.get("iommu", True):
            (self.function / "iommu_group").symlink_to(GROUPS / GROUP)
        for module in INTERRUPTS:
            parameters = Path("/sys/module") / module / "parameters"
            parameters.mkdir(parents=True)
            (parameters / "allow_unsafe_interrupts").write_text("N\n")
        for module in self.settings.get("loaded", ()):
            (Path("/sys/module") / module).mkdir(exist_ok=True)
            (Path("/sys/module") / module / "initstate").write_text("live\n")
        if self.settings.get("driver"):
            self.bind(self.settings["driver"])

    def pipe(self, path: Path, answer: Any) -> None:
        if path.name == "unbind" and self.settings.get("keeps"):
            path.symlink_to("/dev/full")  # every write to it fails
            return
        os.mkfifo(path)

        def serve() -> None:
            while True:
                text = path.read_text().strip()
                self.log.append(f"{path.name} {text} override={self.override()}")
                answer(text)

        threading.Thread(target=serve, daemon=True).start()

    def override(self) -> str:
        return (self.function / "driver_override").read_text().strip()

    def unbind(self, address: str) -> None:
        if address == self.address:
            driver = self.function / "driver"
            (driver.readlink() / address).unlink()
            driver.unlink()

    def probe(self, address: str) -> None:
        if address == self.address and not self.settings.get("refuses"):
            self.bind(self.override())

    def bind(self, driver: str) -> None:
        if driver == "vfio-pci":
            threading.Thread(target=self.make_nodes, daemon=True).start()
            time.sleep(0.2 if not self.settings.get("node_delay") else 0)
        # Both links, in the order of driver_sysfs_add() in drivers/base/dd.c.
        (DRIVERS / driver / self.address).symlink_to(self.function)
        (self.function / "driver").symlink_to(DRIVERS / driver)

    def make_nodes(self) -> None:
        time.sleep(self.settings.get("node_delay", 0))
        names = [f"/dev/vfio/{GROUP}"]
        if self.settings.get("function_nodes"):
            (self.function / "vfio-dev" / "vfio0").mkdir(parents=True)
            (self.function / "vfio-dev" / "vfio0" / "dev").write_text("240:0\n")
            names.append("/dev/vfio/devices/vfio0")
        for name in names:
            os.mknod(name, 0o600 | stat.S_IFCHR, os.makedev(1, 3))

    def state(self) -> dict[str, Any]:
        nodes = {}
        for path in Path("/dev/vfio").rglob("*"):
            if not path.is_dir():
                nodes[str(path)] = [f"{stat.S_IMODE(path.stat().st_mode):04o}", path.stat().st_gid]
        marks = {p.name: str(p.readlink()) for p in Path("/run/tpu-image/iommu-groups").glob("*")}
        driver = self.function / "driver"
        return {
            "driver": driver.readlink().name if driver.is_symlink() else "",
            "override": self.override(),
            "nodes": nodes,
            "marks": marks,
            "interrupts": [
                Path(f"/sys/module/{module}/parameters/allow_unsafe_interrupts").read_text().strip()
                for module in INTERRUPTS
            ],
            "log": self.log,
            "journal": Path("/run/journal").read_text().splitlines() if Path("/run/journal").exists() else [],
            "modules": Path("/run/modules").read_text().splitlines() if Path("/run/modules").exists() else [],
        }


def main() -> None:
    settings = json.loads(sys.argv[1])
    kernel = Kernel(settings)
    kernel.build()
    done = None
    for _ in range(settings.get("times", 1)):
        done = subprocess.run(
            settings["command"], env={}, capture_output=True, text=True, timeout=40, check=False
        )
    assert done is not None
    print(json.dumps({"code": done.returncode, "out": done.stdout, "err": done.stderr, **kernel.state()}))


if __name__ == "__main__":
    main()
