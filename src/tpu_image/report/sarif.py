"""The report as SARIF 2.1.0 (OASIS standard), for code scanning and the viewers of editors.

Every requirement is a rule. A verdict that needs attention is a result: ``fail`` an error, ``warn`` a
warning, ``unknown`` an open question (kind ``open``, to which section 3.27.10 gives the level ``none``).
Verdicts that pass or are skipped are no results, since code scanning raises an alert for each one; their
numbers are in the run's properties.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpu_image import __version__
from tpu_image.catalogue.requirement import Evidence, Requirement, Status, Verdict
from tpu_image.catalogue.sections import section
from tpu_image.report.json import dump, profile_document
from tpu_image.report.model import Report
from tpu_image.report.printable import printable

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"

_KIND_AND_LEVEL = {
    Status.FAIL: ("fail", "error"),
    Status.WARN: ("fail", "warning"),
    Status.UNKNOWN: ("open", "none"),
}

_ROOT = "TARGET"
"""Name of the base that every location is relative to: the root of what was checked."""


def render(report: Report) -> str:
    """Write the report as SARIF text."""
    return dump(document(report))


def document(report: Report) -> dict[str, Any]:
    """Give the report as the values of a SARIF log with one run."""
    rules = list(report.requirements)
    rule_index = {requirement.id: index for index, requirement in enumerate(rules)}
    counts = {status.value: count for status, count in report.counts().items()}
    run = {
        "tool": {
            "driver": {"name": "tpu-image", "version": __version__, "rules": [_rule(rule) for rule in rules]}
        },
        "invocations": [{"executionSuccessful": True}],
        "originalUriBaseIds": {_ROOT: _base(report)},
        "results": [_result(v, rule_index) for v in report.verdicts if v.status in _KIND_AND_LEVEL],
        "properties": {"ok": report.ok, "summary": counts, "profile": profile_document(report.profile)},
    }
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _base(report: Report) -> dict[str, Any]:
    base: dict[str, Any] = {"description": {"text": f"Root of {printable(report.target)}"}}
    if report.root:
        base["uri"] = "file://" + _quote(report.root.rstrip("/")) + "/"
    return base


def _rule(requirement: Requirement) -> dict[str, Any]:
    return {
        "id": requirement.id,
        "shortDescription": {"text": requirement.title or requirement.id},
        "fullDescription": {"text": requirement.why or requirement.title or requirement.id},
        "help": {"text": requirement.remedy or requirement.title or requirement.id},
        "defaultConfiguration": {"level": "error"},
        "properties": {"tags": ["tpu", section(requirement.id)], "source": requirement.source},
    }


def _result(verdict: Verdict, rule_index: dict[str, int]) -> dict[str, Any]:
    kind, level = _KIND_AND_LEVEL[verdict.status]
    remedy = f" Remedy: {verdict.remedy}" if verdict.remedy else ""
    first = verdict.evidence[0].path if verdict.evidence else ""
    result: dict[str, Any] = {
        "ruleId": verdict.requirement,
        "kind": kind,
        "level": level,
        "message": {"text": printable(verdict.message) + printable(remedy)},
        "locations": _locations(verdict.evidence),
        "partialFingerprints": {"requirementAndPath/v1": f"{verdict.requirement}:{printable(first)}"},
    }
    if verdict.requirement in rule_index:
        result["ruleIndex"] = rule_index[verdict.requirement]
    return result


def _locations(evidence: Sequence[Evidence]) -> list[dict[str, Any]]:
    """Give a location for each piece of evidence; the root where there is none, as viewers want one."""
    return [_location(piece) for piece in evidence] or [_location(Evidence("/"))]


def _location(evidence: Evidence) -> dict[str, Any]:
    artifact = {"uri": _quote(evidence.path.lstrip("/")) or "./", "uriBaseId": _ROOT}
    physical: dict[str, Any] = {"artifactLocation": artifact}
    if evidence.line > 0:
        physical["region"] = {"startLine": evidence.line}
    location: dict[str, Any] = {"physicalLocation": physical}
    told = [
        f"{word} {printable(text)}"
        for word, text in (("found:", evidence.found), ("expected:", evidence.expected))
        if text
    ]
    if told:
        location["message"] = {"text": "; ".join(told)}
    return location


def _quote(path: str) -> str:
    """Percent-encode a path (RFC 3986) byte by byte, bytes that are not UTF-8 included."""
    from urllib.parse import quote

    try:
        encoded = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a surrogate that stands for no byte
        encoded = path.encode("utf-8", "surrogatepass")
    return quote(encoded, safe="/")
