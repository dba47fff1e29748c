"""The report as JSON, in the shape that ``tpu-image schema check`` publishes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpu_image.catalogue.requirement import Evidence, Profile, Requirement, Verdict
from tpu_image.report.model import Report
from tpu_image.report.printable import printable

SCHEMA = "tpu-image/check/1"
"""Name of the shape: the number grows when a reader of the old shape could be misled."""

EXPLAIN_SCHEMA = "tpu-image/explain/1"


def document(report: Report) -> dict[str, Any]:
    """Give the report as the values of a JSON document, in a fixed order."""
    return {
        "schema": SCHEMA,
        "target": printable(report.target),
        "profile": profile_document(report.profile),
        "ok": report.ok,
        "summary": {status.value: count for status, count in report.counts().items()},
        "verdicts": [verdict_document(verdict) for verdict in report.verdicts],
    }


def profile_document(profile: Profile) -> dict[str, Any]:
    """Give a profile as JSON values, with the words of the command line."""
    return {
        "platform": profile.platform.value,
        "generations": [generation.name for generation in profile.generations],
        "architecture": profile.architecture,
        "telemetry": profile.telemetry,
        "device_group": profile.device_group,
        "agent": "elsewhere" if profile.agent_elsewhere else "install",
        "waive": {name: printable(reason) for name, reason in sorted(profile.waivers.items())},
    }


def requirements_document(requirements: Sequence[Requirement]) -> dict[str, Any]:
    """Give what the catalogue says of requirements as the values of a JSON document."""
    fields = ("id", "title", "why", "source", "changes", "remedy", "live")
    entries = [{field: getattr(one, field) for field in fields} for one in requirements]
    return {"schema": EXPLAIN_SCHEMA, "requirements": entries}


def verdict_document(verdict: Verdict) -> dict[str, Any]:
    """Give a verdict as JSON values."""
    return {
        "requirement": verdict.requirement,
        "status": verdict.status.value,
        "message": printable(verdict.message),
        "evidence": [_evidence(evidence) for evidence in verdict.evidence],
        "remedy": printable(verdict.remedy),
    }


def _evidence(evidence: Evidence) -> dict[str, Any]:
    return {
        "path": printable(evidence.path),
        "line": evidence.line,
        "found": printable(evidence.found),
        "expected": printable(evidence.expected),
    }


def render(report: Report) -> str:
    """Write the report as JSON text."""
    return dump(document(report))


def dump(values: dict[str, Any]) -> str:
    """Write values as JSON text: ASCII alone, two spaces of indentation, a newline at the end."""
    import json

    return json.dumps(values, indent=2) + "\n"
