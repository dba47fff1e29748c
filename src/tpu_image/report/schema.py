"""The JSON schema (draft 2020-12) of :mod:`tpu_image.report.json`."""

from __future__ import annotations

from typing import Any

from tpu_image.catalogue import hardware
from tpu_image.catalogue.requirement import Platform, Status
from tpu_image.report.json import SCHEMA

TEXT = {"type": "string"}
COUNT = {"type": "integer", "minimum": 0}


def check_schema() -> dict[str, Any]:
    """Give the schema of what ``tpu-image check --format json`` prints."""
    properties = {
        "schema": {"const": SCHEMA},
        "target": TEXT | {"description": "What was checked, as it was named."},
        "profile": profile_schema(),
        "ok": {
            "type": "boolean",
            "description": "Nothing fails, nothing is unknown, and something passes; the exit status is 0.",
        },
        "summary": closed_object({status.value: COUNT for status in Status}),
        "verdicts": {
            "type": "array",
            "items": verdict_schema(),
            "description": "One for each requirement that was asked for, in the catalogue's order.",
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{SCHEMA.replace('/', ':')}",
        "title": "Result of tpu-image check",
        "description": (
            "Text quoted from the target is one printable line: control characters and bytes that are not"
            " UTF-8 stand as backslash escapes, and a long text is cut."
        ),
        **closed_object(properties),
    }


def closed_object(properties: dict[str, Any]) -> dict[str, Any]:
    """Give the schema of an object that has these properties, and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def profile_schema() -> dict[str, Any]:
    """Give the schema of a profile."""
    generations = {"enum": [generation.name for generation in hardware.GENERATIONS]}
    return closed_object(
        {
            "platform": {"enum": [platform.value for platform in Platform]},
            "generations": {"type": "array", "items": generations, "minItems": 1, "uniqueItems": True},
            "architecture": TEXT,
            "telemetry": {"type": "boolean"},
            "device_group": TEXT | {"description": "Group that owns the device nodes; empty for 0666."},
            "agent": {"enum": ["install", "elsewhere"]},
            "waive": {
                "type": "object",
                "additionalProperties": TEXT,
                "description": "Requirement id to the reason for which it need not hold.",
            },
        }
    )


def verdict_schema() -> dict[str, Any]:
    """Give the schema of a verdict."""
    return closed_object(
        {
            "requirement": TEXT | {"pattern": r"^[a-z0-9-]+(\.[a-z0-9-]+)+$"},
            "status": {"enum": [status.value for status in Status]},
            "message": TEXT,
            "evidence": {"type": "array", "items": _evidence()},
            "remedy": TEXT | {"description": "What to do about it; empty where there is nothing to do."},
        }
    )


def _evidence() -> dict[str, Any]:
    return closed_object(
        {
            "path": TEXT | {"description": "Absolute within the target."},
            "line": COUNT | {"description": "Counts from 1; 0 where there is no line."},
            "found": TEXT,
            "expected": TEXT,
        }
    )
