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
from tpu_image.lab.result import BootResult, BootTask, RunResult
from tpu_image.report.boot import document, render
from tpu_image.report.boot_schema import boot_schema

HOSTILE_RESULT = replace(
    RESULT,
    console="\n".join(HOSTILE),
    reason=HOSTILE[0],
    guest=replace(
        GUEST,
        kernel=HOSTILE[0],
        system=HOSTILE[1],
        devices=(device(HOSTILE[0], HOSTILE[3])._replace(driver=HOSTILE[0]),),
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
    assert told["guest"]["devices"][0]["nodes"] == [
        {"path": "/dev/vfio/5", "mode": 0o666, "uid": 0, "gid": 0}
    ]
    assert told["guest"]["devices"][0]["steps"][-1]["name"] == "RESET"
    assert told["console"].splitlines()[0] == "[ 0.0] Linux version 6.1.0\\r"
    assert told["ok"] is True


def test_the_text_says_what_it_ran_on_and_what_came_of_it() -> None:
    text = render(RESULT, "text")
    assert "QEMU 11.1.3, tcg (this machine has no /dev/kvm), bios, 2 CPUs, 2048 MiB" in text
    assert "0000:00:08.0 v6e: vfio-pci, /dev/vfio/5 0666, 7 VFIO calls succeeded" in text
    assert "$ id   (status 0, 0.1 s)\n  uid=0(root)\n" in text
    assert text.endswith("ok: 1 pass\n")


def test_the_text_of_a_guest_that_hung_has_the_end_of_its_console() -> None:
    text = render(TIMED_OUT, "text")
    assert "timed-out after 96 s" in text
    assert "the end of the console:\n  [ 0.0] Linux version 6.1.0\n" in text
    assert "not ok: 1 fail" in text


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
