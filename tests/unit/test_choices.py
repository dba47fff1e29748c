from __future__ import annotations

from collections.abc import Callable

import pytest

import small_catalogue
from tpu_image import catalogue
from tpu_image.catalogue import choices, hardware
from tpu_image.catalogue.requirement import Platform


@pytest.fixture(autouse=True)
def _small_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "requirements", lambda: small_catalogue.REQUIREMENTS)


def test_generations_come_in_the_catalogue_s_order_and_once() -> None:
    assert [g.name for g in choices.generations(" tpu7x,V6E,v6e ,")] == ["v6e", "tpu7x"]


@pytest.mark.parametrize("machine", hardware.MACHINE_TYPES, ids=lambda machine: machine.name)
def test_a_machine_type_may_end_as_the_cloud_tpu_api_writes_it(machine: hardware.MachineType) -> None:
    assert choices.machine_type(machine.name) == choices.machine_type(f"{machine.name}-tpu") == machine


def test_platforms_are_found_by_name() -> None:
    assert [choices.platform(p.value) for p in Platform] == list(Platform)


@pytest.mark.parametrize("name", ["tpu", "_tpu", "tpu-users_2", "a" * 32])
def test_a_group_that_groupadd_takes_is_taken(name: str) -> None:
    assert choices.device_group(name) == name


def test_a_waiver_is_an_id_and_a_reason_on_one_line() -> None:
    assert choices.waiver("kernel.greeting = power\n budget=1") == ("kernel.greeting", "power budget=1")


REFUSED = [
    (choices.generations, "v6", "did you mean v6e?"),
    (choices.generations, "v1,v6e", "unknown TPU generation 'v1'"),
    (choices.generations, " , ", "no TPU generation is named"),
    (choices.machine_type, "n2-standard-4", "give one of ct5p-hightpu-1t"),
    (choices.platform, "GKE", "give one of compute-engine, gke"),
    (choices.device_group, "", "no group name"),
    (choices.device_group, "1tpu", "no group name"),
    (choices.device_group, "-tpu", "no group name"),
    (choices.device_group, "a" * 33, "no group name"),
    (choices.device_group, "tpu\n", "no group name"),
    (choices.device_group, 'x", RUN+="/bin/sh', "no group name"),
    (choices.waiver, "kernel.greeting", "write ID=REASON"),
    (choices.waiver, "kernel.greeting=\n", "has no reason"),
]


@pytest.mark.parametrize(("read", "word", "reason"), REFUSED)
def test_what_is_not_allowed_is_refused_in_one_line(
    read: Callable[[str], object], word: str, reason: str
) -> None:
    with pytest.raises(choices.ChoiceError) as caught:
        read(word)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_requirement_is_not_waived() -> None:
    with pytest.raises(catalogue.UnknownRequirementError, match=r"did you mean kernel\.greeting"):
        choices.waiver("kernel.greetin=x")
