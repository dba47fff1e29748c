"""SARIF against the parts of the standard's schema that we use, with nothing else allowed."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from jsonschema import Draft202012Validator

import reports
from tpu_image.catalogue.requirement import Evidence, Status, Verdict
from tpu_image.report import sarif
from tpu_image.report.model import Report


def _object(required: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": required.split(),
        "properties": properties,
        "additionalProperties": False,
    }


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


TEXT = {"type": "string"}
MESSAGE = _object("text", text=TEXT)
LEVEL = {"enum": ["none", "note", "warning", "error"]}
ANYTHING = {"type": "object"}
LOCATION = _object(
    "",
    physicalLocation=_object(
        "artifactLocation",
        artifactLocation=_object(
            "uri", uri=TEXT | {"pattern": r"^[A-Za-z0-9._~/%-]+$"}, uriBaseId={"const": "TARGET"}
        ),
        region=_object("startLine", startLine={"type": "integer", "minimum": 1}),
    ),
    message=MESSAGE,
)
RULE = _object(
    "id",
    id=TEXT,
    shortDescription=MESSAGE,
    fullDescription=MESSAGE,
    help=MESSAGE,
    defaultConfiguration=_object("level", level=LEVEL),
    properties=ANYTHING,
)
RESULT = _object(
    "message",
    ruleId=TEXT,
    ruleIndex={"type": "integer", "minimum": 0},
    kind={"enum": ["notApplicable", "pass", "fail", "review", "open", "informational"]},
    level=LEVEL,
    message=MESSAGE,
    locations=_list(LOCATION) | {"minItems": 1},
    partialFingerprints={"type": "object", "additionalProperties": TEXT},
) | {  # 3.27.10: a level other than none goes with a failure alone
    "if": {"properties": {"kind": {"not": {"const": "fail"}}}},
    "then": {"properties": {"level": {"const": "none"}}},
}
DRIVER = _object("name", name=TEXT, version=TEXT, informationUri=TEXT, rules=_list(RULE))
BASE = _object("", uri=TEXT | {"pattern": "^file:///.*/$"}, description=MESSAGE)
RUN = _object(
    "tool",
    tool=_object("driver", driver=DRIVER),
    invocations=_list(_object("executionSuccessful", executionSuccessful={"type": "boolean"})),
    originalUriBaseIds=_object("TARGET", TARGET=BASE),
    results=_list(RESULT),
    properties=ANYTHING,
)
LOG = _object("version runs", version={"const": "2.1.0"}, runs=_list(RUN), **{"$schema": TEXT})
VALIDATOR = Draft202012Validator(LOG)


def run_of(report: Report) -> dict[str, Any]:
    document = json.loads(sarif.render(report))
    VALIDATOR.validate(document)
    run: dict[str, Any] = document["runs"][0]
    return run


def test_what_needs_attention_is_a_result() -> None:
    results = run_of(reports.report(*reports.EVERY_STATUS))["results"]
    assert [(r["ruleId"], r["kind"], r["level"]) for r in results] == [
        ("kernel.thp", "fail", "error"),
        ("kernel.idle", "fail", "warning"),
        ("vfio.modules", "open", "none"),
    ]


def test_a_result_points_to_its_rule() -> None:
    run = run_of(reports.report(reports.FAILURE))
    rule = run["tool"]["driver"]["rules"][run["results"][0]["ruleIndex"]]
    assert rule["id"] == "kernel.thp"
    assert rule["shortDescription"]["text"] == "Huge pages are always on"


def test_locations_are_relative_to_the_root_of_the_target() -> None:
    run = run_of(reports.report(reports.FAILURE))
    places = [place["physicalLocation"] for place in run["results"][0]["locations"]]
    assert places == [
        {
            "artifactLocation": {"uri": "boot/grub/grub.cfg", "uriBaseId": "TARGET"},
            "region": {"startLine": 7},
        },
        {"artifactLocation": {"uri": "etc/default/grub.d/a%20b%FF.cfg", "uriBaseId": "TARGET"}},
    ]
    assert run["originalUriBaseIds"]["TARGET"]["uri"] == "file:///srv/a%20b/%FF/"


def test_a_result_without_evidence_points_to_the_root() -> None:
    place = run_of(reports.report(reports.WARNING))["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "./"


@pytest.mark.parametrize("path", ["/a:b", "/a?b#c", "/ü", "/a%41", "//x", "/\udcfe"])
def test_an_odd_path_comes_back_from_its_uri(path: str) -> None:
    verdict = Verdict("kernel.thp", Status.FAIL, "x", (Evidence(path),))
    uri = run_of(reports.report(verdict))["results"][0]["locations"][0]["physicalLocation"][
        "artifactLocation"
    ]["uri"]
    assert unquote_to_bytes(uri) == path.lstrip("/").encode("utf-8", "surrogateescape")


@given(reports.reports)
def test_any_report_is_valid(report: Report) -> None:
    run_of(report)
