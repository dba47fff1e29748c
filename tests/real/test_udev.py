"""Our reading of udev rules is udev's own: the installed udev is asked the same questions."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest

import udev_lab
import vfio_recipe
from tpu_image.catalogue import device_nodes, vfio
from tpu_image.catalogue.device_events import (
    MARKS,
    accel_node,
    function,
    function_node,
    group_node,
    load_rules,
)
from tpu_image.catalogue.hardware import GENERATIONS, Generation, NodeKind
from tpu_image.catalogue.requirement import Profile
from tpu_image.formats.udev_event import evaluate
from tpu_image.formats.udev_model import Device, Machine
from tpu_image.formats.udev_rules import parse
from tpu_image.trees.memory import File, MemoryTree

pytestmark = pytest.mark.real

OURS = {"99-tpu-vfiopci.rules": vfio.render_rules(), "99-tpu.rules": device_nodes.render_rules(Profile())}
DOCUMENT = {"99-tpu-vfiopci.rules": vfio_recipe.BIND_RULES, "99-tpu.rules": vfio_recipe.ACCEL_RULES}
VFIO = [g for g in GENERATIONS if g.node is NodeKind.VFIO]
FUNCTIONS = [function(g, driver) for g in GENERATIONS for driver in ("", "vfio-pci", "gasket")]
NODES = [group_node(0), group_node(12), *map(function_node, VFIO), accel_node(GENERATIONS[2])]


def this_machine(files: dict[str, str]) -> MemoryTree:
    """The distribution's rules with ours beside them."""
    folder = Path("/usr/lib/udev/rules.d")
    nodes = {str(path): File(path.read_bytes()) for path in folder.iterdir()}
    nodes |= {f"/etc/udev/rules.d/{name}": File(text.encode()) for name, text in files.items()}
    for name in ("/etc/passwd", "/etc/group"):
        nodes[name] = File(Path(name).read_bytes())
    return MemoryTree(nodes)


def assert_agrees(folder: Path, files: dict[str, str], device: Device, action: str) -> None:
    real = udev_lab.ask(folder, files, device, action, existing=(f"{MARKS}/0", f"{MARKS}/12"))
    ours = load_rules(this_machine(files), Profile().architecture).outcome(device, action)
    certain = [command.value for command in ours.run if not command.doubt]
    assert [line for line in real.run if line in {c.value for c in ours.run}] == real.run, real.log
    assert [line for line in real.run if line in certain] == certain, real.log
    assert {tag for tag, sure in ours.tags.items() if sure} <= real.tags <= set(ours.tags), real.log
    assert not ours.mode.possible
    assert real.mode == (ours.mode.sure.value if ours.mode.sure else ""), real.log


@pytest.mark.parametrize("files", [OURS, DOCUMENT], ids=["ours", "the document's"])
@pytest.mark.parametrize(
    "device", FUNCTIONS, ids=lambda d: f"{d.attributes['device']}-{d.driver or 'unbound'}"
)
def test_the_programs_for_a_function_are_those_udev_runs(
    tmp_path: Path, files: dict[str, str], device: Device
) -> None:
    assert_agrees(tmp_path, files, device, "add")


@pytest.mark.parametrize("files", [OURS, DOCUMENT], ids=["ours", "the document's"])
@pytest.mark.parametrize("action", ["add", "change"])
@pytest.mark.parametrize("device", NODES, ids=lambda d: f"{d.subsystem}-{d.kernel}")
def test_the_mode_of_a_node_is_the_one_udev_gives(
    tmp_path: Path, files: dict[str, str], device: Device, action: str
) -> None:
    assert_agrees(tmp_path, files, device, action)


@pytest.mark.parametrize("generation", VFIO, ids=lambda g: g.name)
@pytest.mark.parametrize("driver", ["", "gasket", "vfio-pci"])
def test_udev_runs_our_script_for_every_generation(
    tmp_path: Path, generation: Generation, driver: str
) -> None:
    answer = udev_lab.ask(tmp_path, OURS, function(generation, driver))
    assert answer.run.count("/lib/udev/bind_to_vfio_pci.sh 0000:00:04.0") == 1


@pytest.mark.parametrize(("group", "mode"), [(3, "0666"), (4, "")])
def test_udev_opens_the_groups_that_are_marked_alone(tmp_path: Path, group: int, mode: str) -> None:
    answer = udev_lab.ask(tmp_path, OURS, group_node(group), "change", existing=(f"{MARKS}/3",))
    assert answer.mode == mode


def test_udev_opens_what_character_devices_are_used_with(tmp_path: Path) -> None:
    iommufd = Device("iommu", "misc", "/devices/virtual/misc/iommu", node="/dev/iommu")
    iommufd = iommufd._replace(properties={"MAJOR": "10", "MINOR": "120"})
    assert udev_lab.ask(tmp_path, OURS, iommufd, "change").mode == "0666"


def test_another_function_of_google_is_left_alone(tmp_path: Path) -> None:
    network = function(VFIO[0])._replace(attributes={"vendor": "0x1ae0", "device": "0x0042"})
    assert not [line for line in udev_lab.ask(tmp_path, OURS, network).run if "bind" in line]


CONDITIONS = (
    'KERNEL=="0000:*"',
    'KERNEL!="0000:*"',
    'KERNEL=="????:??:??.[0-7]"',
    'KERNEL=="[!0-9]*|1*"',
    'KERNEL=="[[:digit:]]*"',
    r'KERNEL=="\0*"',
    'KERNEL=="[0000*"',
    'KERNEL==""',
    'KERNEL=="?*"',
    'SUBSYSTEM=="pci|usb"',
    'SUBSYSTEM!="?*"',
    'ACTION=="add|change"',
    'ACTION!="add"',
    'DEVPATH=="*/pci0000:00/*"',
    'DRIVER==""',
    'DRIVER!="vfio-pci"',
    'DRIVER=="|vfio-pci"',
    'ATTR{vendor}=="0x1ae0"',
    'ATTR{vendor}!="0x1ae0"',
    'ATTR{label}=="two words"',
    'ATTR{label}=="two words "',
    'ATTR{absent}==""',
    'ATTR{absent}!="x"',
    'ATTR{empty}=="|x"',
    'ATTRS{vendor}=="0x1ae0", ATTRS{device}=="0x006f"',
    'ATTRS{vendor}=="0x8086", KERNELS=="0000:00:01.0"',
    'ATTRS{vendor}=="0x8086", ATTRS{device}=="0x006f"',
    'SUBSYSTEMS=="pci", DRIVERS=="pcieport"',
    'SUBSYSTEMS=="usb"',
    'TAGS=="t1"',
    'TAG=="t1"',
    'TAG!="t1"',
    'TAG=="t*"',
    'TAG=="?*"',
    'TAG==""',
    'ENV{A}=="x"',
    'ENV{A}=="x y"',
    'ENV{A}==""',
    'ENV{A}!="?*"',
    'ENV{PCI_SLOT_NAME}=="0000*"',
    'ENV{SUBSYSTEM}=="pci"',
    'TEST=="label"',
    'TEST=="absent"',
    'TEST!="absent"',
    'TEST=="/run/there/%k"',
    'TEST=="/run/absent"',
    'RESULT==""',
    'RESULT!=""',
    'SYMLINK=="tpu/*"',
    'NAME==""',
)
ASSIGNMENTS = (
    'ENV{A}="x"',
    'ENV{A}+="y"',
    'ENV{A}=""',
    'ENV{A}="$kernel"',
    'TAG+="t1"',
    'TAG+="t2"',
    'TAG-="t1"',
    'TAG="t3"',
    'TAG+="not valid"',
    'MODE="0600"',
    'MODE="0666"',
    'MODE:="0640"',
    'MODE="rw"',
    'GROUP="no-such-group"',
    'SYMLINK+="tpu/$number"',
    'GOTO="a"',
    'GOTO="b"',
    'GOTO="nowhere"',
    'LABEL="a"',
    'LABEL="b"',
    'OPTIONS+="link_priority=1"',
    "BROKEN",
    'UNKNOWN="x"',
)
SUBSTITUTIONS = (
    "$kernel",
    "%p",
    "%n",
    "$attr{vendor}",
    "%s{label}.",
    "$attr{absent}.",
    "$env{A}",
    "$id $driver",
    "$name $sys $root",
    "$$ %%",
    "$unknown %z",
    "a $attr{} b",
    "$result.",
    "$links.",
    "$tempnode.",
)


def generated(seed: int) -> str:
    """A rules file of lines that mix comparisons and assignments; each runs a program of its own number."""
    choose = random.Random(seed)

    def some(items: tuple[str, ...], most: int) -> list[str]:
        return choose.sample(items, choose.randint(0, most))

    lines = []
    for number in range(120):
        operator = "=" if number == 20 else "+="
        program = f'RUN{operator}"p{number} {choose.choice(SUBSTITUTIONS)}"'
        tokens = [*some(CONDITIONS, 2), *some(ASSIGNMENTS, 2), *([program] if choose.random() < 0.7 else [])]
        choose.shuffle(tokens)
        separator = choose.choice([", ", ",", " ", ", \\\n  ", ", \\\n# comment\n  "])
        lines.append(separator.join(tokens))
    return "\n".join(lines) + "\n"


BRIDGE = Device(
    "0000:00:01.0",
    "pci",
    "/devices/pci0000:00/0000:00:01.0",
    driver="pcieport",
    attributes={"vendor": "0x8086", "device": "0x1234"},
)
DEVICES: tuple[Device, ...] = (
    Device(
        "0000:01:00.0",
        "pci",
        f"{BRIDGE.devpath}/0000:01:00.0",
        attributes={"vendor": "0x1ae0", "device": "0x006f", "label": "two words", "empty": ""},
        properties={"PCI_SLOT_NAME": "0000:01:00.0"},
        parent=BRIDGE,
    ),
    Device(
        "vfio0",
        "vfio-dev",
        f"{BRIDGE.devpath}/vfio-dev/vfio0",
        attributes={"label": "two words", "empty": ""},
        properties={"MAJOR": "240", "MINOR": "0"},
        node="/dev/vfio/devices/vfio0",
        parent=BRIDGE,
    ),
)


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.subsystem)
@pytest.mark.parametrize("seed", range(8))
def test_generated_rules_mean_the_same_to_udev(tmp_path: Path, seed: int, device: Device) -> None:
    text = generated(seed)
    there = f"/run/there/{device.kernel}"
    # The distribution's own rules set properties and tags that nothing here is about.
    masks = dict.fromkeys((path.name for path in Path("/usr/lib/udev/rules.d").iterdir()), "")
    real = udev_lab.ask(tmp_path, {**masks, "a.rules": text}, device, existing=(there,))
    machine = Machine(exists=lambda path: path == there, groups=frozenset(groups()), systemd=252)
    ours = evaluate([("a.rules", parse(text))], device, "add", machine)
    sure = {command.value for command in ours.run if not command.doubt}
    assert len(sure) > 10, "the rules are too simple to tell anything"
    assert [line for line in real.run if line in sure] == [c.value for c in ours.run if c.value in sure]
    assert {line.split()[0] for line in real.run} <= {command.value.split()[0] for command in ours.run}
    if ours.tags:  # udev shows the last tags there were when all are taken away
        assert {tag for tag, certain in ours.tags.items() if certain} <= real.tags <= set(ours.tags)
    assert real.mode in {candidate.value for candidate in ours.mode.candidates()} | {""}
    assert ours.mode.settles(lambda value: value == real.mode) is not False or not real.mode


def groups() -> Iterable[str]:
    return (line.partition(":")[0] for line in Path("/etc/group").read_text().splitlines())
