"""JUnit XML against what the two schemas in use allow, written down here as tables."""

from __future__ import annotations

import re
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from hypothesis import given

import reports
from tpu_image.report import junit
from tpu_image.report.model import Report

# element: (required attributes, other attributes, children in their order)
WINDY_ROAD = {
    "testsuites": ("", "", "testsuite"),
    "testsuite": (
        "name timestamp hostname tests failures errors time package id",
        "skipped",
        "properties testcase system-out system-err",
    ),
    "properties": ("", "", "property"),
    "property": ("name value", "", ""),
    "testcase": ("name classname time", "", "skipped error failure"),
    "skipped": ("", "message", ""),
    "error": ("type", "message", ""),
    "failure": ("type", "message", ""),
    "system-out": ("", "", ""),
    "system-err": ("", "", ""),
}
JENKINS = {
    "testsuites": ("", "name time tests failures disabled errors", "testsuite"),
    "testsuite": (
        "name tests",
        "failures errors group time skipped timestamp hostname id package file log url version",
        "properties testcase system-out system-err",
    ),
    "properties": ("", "", "property"),
    "property": ("name value", "", ""),
    "testcase": ("name classname", "assertions time status", "skipped error failure system-out system-err"),
    "skipped": ("", "type message", ""),
    "error": ("", "type message", ""),
    "failure": ("", "type message", ""),
    "system-out": ("", "", ""),
    "system-err": ("", "", ""),
}


def violations(element: Element, schema: dict[str, tuple[str, str, str]]) -> list[str]:
    required, other, children = (words.split() for words in schema[element.tag])
    found = [f"{element.tag} lacks {name}" for name in required if name not in element.attrib]
    found += [f"{element.tag} has {name}" for name in element.attrib if name not in [*required, *other]]
    found += [f"{element.tag} holds {child.tag}" for child in element if child.tag not in children]
    places = [children.index(child.tag) for child in element if child.tag in children]
    if places != sorted(places):
        found.append(f"{element.tag} has its children in another order")
    return found + [problem for child in element for problem in violations(child, schema)]


def suite_of(report: Report) -> Element:
    suite = ElementTree.fromstring(junit.render(report)).find("testsuite")
    assert suite is not None
    return suite


@pytest.mark.parametrize("schema", [WINDY_ROAD, JENKINS], ids=["windy road", "jenkins"])
def test_it_keeps_to_the_schema(schema: dict[str, tuple[str, str, str]]) -> None:
    suites = ElementTree.fromstring(junit.render(reports.report(*reports.EVERY_STATUS)))
    assert violations(suites, schema) == []


def test_each_status_has_its_element() -> None:
    suite = suite_of(reports.report(*reports.EVERY_STATUS))
    kinds = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    assert kinds == {
        "kernel.thp": ["failure"],
        "kernel.idle": [],
        "vfio.modules": ["error"],
        "gke.tools": ["skipped"],
        "kernel.iommu": [],
    }
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "5", "failures": "1", "errors": "1", "skipped": "1"}


def test_a_failure_tells_place_and_remedy() -> None:
    text = suite_of(reports.report(reports.FAILURE)).findtext("testcase/failure")
    assert text is not None
    assert "/boot/grub/grub.cfg:7\n  found: always,sm_on\n  expected: always\n" in text
    assert text.endswith("remedy: run: tpu-image apply")


def test_a_warning_is_told_beside_the_cases() -> None:
    assert "kernel.idle: idle is set twice" in str(
        suite_of(reports.report(reports.WARNING)).findtext("system-out")
    )


def test_a_report_without_verdicts_is_no_success() -> None:
    assert suite_of(reports.report()).get("errors") == "1"


def test_the_time_can_be_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert suite_of(reports.report()).get("timestamp") == "1970-01-02T00:00:00"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", str(suite_of(reports.report()).get("timestamp")))


@given(reports.reports)
def test_any_report_is_well_formed(report: Report) -> None:
    ElementTree.fromstring(junit.render(report))
