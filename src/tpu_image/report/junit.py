"""The report as JUnit XML, for the test views of CI systems.

It keeps to what both common schemas of the format allow: Jenkins' ``junit-10.xsd`` and Windy Road's
``JUnit.xsd``. A verdict is a test case: ``fail`` a failure, ``unknown`` an error, ``skip`` a skipped case; a
``warn`` passes, and is told in ``system-out``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpu_image.catalogue.requirement import Evidence, Status, Verdict
from tpu_image.catalogue.sections import section
from tpu_image.report.json import profile_document
from tpu_image.report.model import Report
from tpu_image.report.printable import printable

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_ELEMENTS = {Status.FAIL: "failure", Status.UNKNOWN: "error", Status.SKIP: "skipped"}


def render(report: Report) -> str:
    """Write the report as an XML document in ASCII, other characters as references."""
    from xml.etree import ElementTree

    suites = ElementTree.Element("testsuites")
    suites.append(_suite(report))
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites).decode("ascii") + "\n"


def _suite(report: Report) -> Element:
    from xml.etree.ElementTree import Element, SubElement

    counts = report.counts()
    suite = Element(
        "testsuite",
        {
            "name": f"tpu-image check {printable(report.target)}",
            "package": "tpu-image",
            "id": "0",
            "timestamp": _timestamp(),
            "hostname": "localhost",
            "tests": str(len(report.verdicts)),
            "failures": str(counts[Status.FAIL]),
            "errors": str(counts[Status.UNKNOWN] + (not report.verdicts)),
            "skipped": str(counts[Status.SKIP]),
            "time": "0",
        },
    )
    properties = SubElement(suite, "properties")
    for name, value in profile_document(report.profile).items():
        SubElement(properties, "property", name=name, value=_property(value))
    for verdict in report.verdicts:
        suite.append(_case(verdict))
    SubElement(suite, "system-out").text = "\n".join(_warnings(report))
    SubElement(suite, "system-err")
    return suite


def _property(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name}: {reason}" for name, reason in value.items())
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _case(verdict: Verdict) -> Element:
    from xml.etree.ElementTree import Element, SubElement

    name = {
        "name": verdict.requirement,
        "classname": f"tpu-image.{section(verdict.requirement)}",
        "time": "0",
    }
    case = Element("testcase", name)
    kind = _ELEMENTS.get(verdict.status)
    if kind == "skipped":
        SubElement(case, kind, message=printable(verdict.message))
    elif kind:
        problem = SubElement(case, kind, message=printable(verdict.message), type=verdict.status.value)
        problem.text = "\n".join(_details(verdict))
    return case


def _details(verdict: Verdict) -> list[str]:
    lines = [printable(verdict.message), *map(_place, verdict.evidence)]
    return [*lines, f"remedy: {printable(verdict.remedy)}"] if verdict.remedy else lines


def _place(evidence: Evidence) -> str:
    place = printable(evidence.path) + (f":{evidence.line}" if evidence.line else "")
    found = f"\n  found: {printable(evidence.found)}" if evidence.found else ""
    expected = f"\n  expected: {printable(evidence.expected)}" if evidence.expected else ""
    return place + found + expected


def _warnings(report: Report) -> list[str]:
    return [
        f"{verdict.requirement}: {line}"
        for verdict in report.verdicts
        if verdict.status is Status.WARN
        for line in _details(verdict)
    ]


def _timestamp() -> str:
    """Give the time in UTC without its zone, as both schemas want it; SOURCE_DATE_EPOCH decides where set."""
    import os
    import time

    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    seconds = int(epoch) if epoch.isdecimal() else int(time.time())
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
