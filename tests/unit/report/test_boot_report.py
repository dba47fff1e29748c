"""A boot is told in every format that a check has, and nothing in it can break one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from lab_results import GUEST, RESULT, TIMED_OUT, device
from reports import HOSTILE
from tpu_image.lab.result import BootResult, BootTask, Node, Outcome, RunResult
from tpu_image.report.boot import document, render
from tpu_image.report.boot_schema import boot_schema

NODE = Node(f"/dev/vfio/{HOSTILE[3]}", 0o666, 0, 0)
HOSTILE_RESULT = replace(
    RESULT,
    console="\n".join(HOSTILE),
    reason=HOSTILE[0],
    guest=replace(
        GUEST,
        kernel=HOSTILE[0],
        system=HOSTILE[1],
        devices=(device()._replace(address=HOSTILE[0], driver=HOSTILE[0], group=HOSTILE[3], nodes=(NODE,)),),
        tasks=(BootTask(HOSTILE[0], HOSTILE[0], HOSTILE[0], HOSTILE[0], None, None),),
        run=(RunResult(HOSTILE[0], 1, "\n".join(HOSTILE)),),
        faults=HOSTILE,
    ),
)
RESULTS = pytest.mark.parametrize(
    "result", [RESULT, TIMED_OUT, HOSTILE_RESULT], ids=["good", "timed-out", "hostile"]
)


def as_json(result: BootResult) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(render(result, "json"))
    return value


@RESULTS
def test_the_json_holds_the_published_schema(result: BootResult) -> None:
    jsonschema.Draft202012Validator(boot_schema()).validate(as_json(result))


def test_the_json_says_everything_that_was_found() -> None:
    told = as_json(RESULT)
    assert told["artefact"]["unchanged"] is True
    first = told["guest"]["devices"][0]
    assert first["nodes"][0] == {"path": "/dev/vfio/4", "mode": 0o666, "uid": 0, "gid": 0}
    assert [step["name"] for step in first["steps"]][6:8] == ["RESET", "open"]
    assert told["console"].splitlines()[0] == "SeaBIOS (version 1.16.3-debian)\\r"
    assert told["ok"] is True


def test_the_text_says_what_it_ran_on_and_what_came_of_it() -> None:
    text = render(RESULT, "text")
    assert "QEMU 11.1.3, tcg (/dev/kvm does not boot a guest), bios, 2 CPUs, 4096 MiB" in text
    nodes = "/dev/vfio/4 0666, /dev/vfio/devices/vfio0 0666"
    assert f"0000:00:08.0 v6e: vfio-pci, {nodes}, 9 VFIO calls succeeded" in text
    assert "jax.devices())'   (status 0, 3.2 s)\n  4 devices\n" in text
    assert text.endswith("ok: 5 pass, 1 skip\n")


def test_the_text_of_a_guest_that_hung_has_the_end_of_its_console() -> None:
    text = render(TIMED_OUT, "text")
    assert "timed-out after 84 s" in text
    assert "the end of the console:\n  [    0.000000] Linux version 6.8.0-1021-gcp\n" in text
    assert "not ok: 1 fail" in text


def test_who_left_the_console_is_not_shown_its_end() -> None:
    text = render(replace(TIMED_OUT, outcome=Outcome.LEFT), "text")
    assert "left after 84 s" in text
    assert "Linux version" not in text


def test_of_what_a_command_floods_people_are_shown_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpu_image.report.boot.OUTPUT_LINES", 2)
    flooded = replace(RESULT, guest=replace(GUEST, run=(RunResult("yes", 0, "a\nb\nc\nd\n"),)))
    assert "\n  (2 earlier lines are left out; --format json has them)\n  c\n  d\n" in render(flooded, "text")
    assert as_json(flooded)["guest"]["run"][0]["output"] == "a\nb\nc\nd\n"


def test_a_task_that_found_nothing_to_do_is_no_failure() -> None:
    task = BootTask("tpu-image-system-environment.service", "inactive", "exec-condition", "", 12.4, 12.4)
    result = replace(RESULT, guest=replace(GUEST, tasks=(task,)))
    assert "  tpu-image-system-environment.service: nothing to do\n" in render(result, "text")
    page = render(result, "html")
    assert "nothing to do" in page
    assert "exec-condition" not in page


def test_quiet_says_only_what_needs_attention() -> None:
    quiet = replace(RESULT, guest=replace(GUEST, run=()))
    assert render(quiet, "text", quiet=True) == ""


@RESULTS
@pytest.mark.parametrize("form", ["text", "json", "junit", "sarif"])
def test_no_format_passes_control_characters_on(result: BootResult, form: str) -> None:
    text = render(result, form)
    assert all(character.isprintable() or character == "\n" for character in text)


def test_junit_and_sarif_know_the_verdicts_of_the_lab() -> None:
    case = ElementTree.fromstring(render(TIMED_OUT, "junit")).find("*/testcase")
    assert case is not None
    assert case.get("name") == "lab.boot"
    (run,) = json.loads(render(TIMED_OUT, "sarif"))["runs"]
    assert run["results"][0]["ruleId"] == "lab.boot"
    assert "lab.boot" in {rule["id"] for rule in run["tool"]["driver"]["rules"]}


def test_the_document_names_its_shape() -> None:
    assert document(RESULT)["schema"] == "tpu-image/boot/1"
