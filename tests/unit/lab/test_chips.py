"""What chips are asked for, and where they are plugged in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tpu_image.catalogue import hardware
from tpu_image.catalogue.choices import ChoiceError
from tpu_image.lab import chips

ASKED = {
    "v6e:4": [("v6e", "08.0"), ("v6e", "09.0"), ("v6e", "0a.0"), ("v6e", "0b.0")],
    "v5p": [("v5p", "08.0")],
    "tpu7x:2": [("tpu7x", "08.0"), ("tpu7x", "08.1"), ("tpu7x", "09.0"), ("tpu7x", "09.1")],
    " V6E:1 , tpu7x:1 ": [("v6e", "08.0"), ("tpu7x", "09.0"), ("tpu7x", "09.1")],
}


@pytest.mark.parametrize(("words", "places"), ASKED.items())
def test_each_chip_has_a_slot_and_each_function_a_place(words: str, places: list[tuple[str, str]]) -> None:
    functions = chips.parse(words).functions()
    assert [(function.generation.name, function.name) for function in functions] == places
    assert functions[0].address == "0000:00:08.0"


WRONG = {
    "v6e:0": "'0' is no number of v6e chips; give 1 to 20",
    "v6e:-1": "is no number",
    "v6e:": "'' is no number",
    "v6e:4x": "is no number",
    "v6e:²": "is no number",
    "v6e:" + "9" * 5000: "is no number",
    "v6e:21": "v6e:21 is 21 chips; an emulated machine has room for 20",
    "v6e:11,v5p:10": "is 21 chips",
    "v6e:1,v6e:1": "names v6e twice",
    "v9:1": "unknown TPU generation 'v9'; give one of",
    "v4:4": "v4 needs Google's own driver and cannot be emulated; give one of v5e, v5p, v6e, tpu7x",
    ":4": "names no TPU generation",
    "": "names no chips",
    ",,": "names no chips",
}


@pytest.mark.parametrize(("words", "message"), WRONG.items(), ids=[word[:20] for word in WRONG])
def test_what_cannot_be_given_is_said_in_one_line(words: str, message: str) -> None:
    with pytest.raises(ChoiceError) as refused:
        chips.parse(words)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("machine", hardware.MACHINE_TYPES, ids=lambda machine: machine.name)
def test_a_machine_type_has_its_chips_and_is_found_again(machine: hardware.MachineType) -> None:
    found = chips.of_machine(machine)
    assert found.total == machine.chips
    assert found.machine_type == machine
    assert chips.parse(f"{machine.generation}:{machine.chips}").machine_type == machine
    per_chip = hardware.generation(machine.generation).functions_per_chip
    assert len(found.functions()) == machine.chips * per_chip


def test_a_mixture_is_no_machine_type() -> None:
    mixture = chips.parse("tpu7x:1,v6e:1")
    assert mixture.machine_type is None
    assert [generation.name for generation in mixture.generations] == ["v6e", "tpu7x"]


def test_qemu_is_told_the_place_and_the_socket() -> None:
    one, two = chips.parse("tpu7x").functions()
    assert json.loads(two.device(Path("/run/x,y/08.1.sock"))) == {
        "driver": "vfio-user-pci",
        "id": "tpu-08-1",
        "addr": "08.1",
        "multifunction": True,
        "socket": {"type": "unix", "path": "/run/x,y/08.1.sock"},
    }
    assert json.loads(one.device(Path("s")))["multifunction"] is True
    assert "multifunction" not in json.loads(chips.parse("v6e").functions()[0].device(Path("s")))


def test_the_largest_machine_fits_and_leaves_the_standard_devices_their_slots() -> None:
    places = [function.slot for function in chips.parse(f"tpu7x:{chips.LIMIT}").functions()]
    assert (min(places), max(places)) == (0x08, 0x1B)


@pytest.mark.parametrize(
    ("name", "count", "accelerator", "topology"),
    [
        ("v6e", 8, "v6e-8", "2x4"),
        ("v5e", 4, "v5litepod-4", "2x2"),
        ("v5p", 4, "v5p-8", "2x2x1"),
        ("tpu7x", 1, "tpu7x-2", "1x1x1"),
        ("v4", 4, "v4-8", "2x2x1"),
        ("v3", 4, "v3-8", "2x2"),
        ("v6e", 3, "v6e-3", "1x3"),
        ("v5p", 3, "v5p-6", "1x3x1"),
    ],
)
def test_a_slice_has_its_public_names(name: str, count: int, accelerator: str, topology: str) -> None:
    generation = hardware.generation(name)
    assert (generation.accelerator_type(count), generation.topology(count)) == (accelerator, topology)
