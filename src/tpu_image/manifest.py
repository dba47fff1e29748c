"""What a build did, written down beside its image."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tpu_image import __version__
from tpu_image.build import FORMATS, Built, Request, manifest_path
from tpu_image.customise.record import customisation_document, customisation_schema
from tpu_image.report.json import dump, profile_document, verdict_document
from tpu_image.report.printable import printable
from tpu_image.report.schema import COUNT, TEXT, closed_object, profile_schema, verdict_schema

SCHEMA = "tpu-image/build/1"
"""Name of the shape: the number grows when a reader of the old shape could be misled."""


def documents(request: Request, built: Built) -> dict[Path, str]:
    """Give all that is written down beside an image: the manifest, and the bill of materials where it is wanted."""
    texts = {manifest_path(request.output): manifest(request, built)}
    if request.sbom is not None:
        from tpu_image.sbom import sbom

        texts[request.sbom] = sbom(request.sbom, request, built)
    return texts


def manifest(request: Request, built: Built) -> str:
    """Write the manifest as JSON text: tool, base and output with SHA-256, every change, verdict and package."""
    archive = built.archive
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "tool": {"name": "tpu-image", "version": __version__},
        "profile": profile_document(request.profile),
        "base": {"name": printable(request.base.name), "sha256": built.base_sha256},
        "output": {
            "name": printable(request.output.name),
            "format": request.form,
            "size": archive.size if archive else 0,
            "sha256": archive.sha256 if archive else "",
            "disk_size": built.disk_size,
        },
        "ok": built.holds,
        "customisation": customisation_document(built.executed, built.placed),
        "agents": [
            {
                "name": agent.name,
                "reference": printable(agent.reference),
                "digest": agent.digest,
                "runtime": agent.runtime,
                "left_out": [printable(line) for line in agent.left_out],
            }
            for agent in built.agents
        ],
        "changes": [printable(str(change)) for change in built.changes],
        "verdicts": [verdict_document(verdict) for verdict in built.verdicts],
        "packages": [
            {"name": printable(name), "version": printable(version)} for name, version, _ in built.packages
        ],
    }
    return dump(content)


def build_schema() -> dict[str, Any]:
    """Give the schema of what ``tpu-image build`` writes beside an image."""
    digest = TEXT | {"pattern": "^[0-9a-f]{64}$"}
    named = {"name": TEXT, "sha256": digest}
    texts = {"type": "array", "items": TEXT}
    output = {**named, "format": {"enum": list(FORMATS)}, "size": COUNT, "disk_size": COUNT}
    properties = {
        "schema": {"const": SCHEMA},
        "tool": closed_object({"name": {"const": "tpu-image"}, "version": TEXT}),
        "profile": profile_schema(),
        "base": closed_object(named),
        "output": closed_object(output),
        "ok": {"type": "boolean", "description": "False where --force wrote an image that does not hold."},
        "customisation": customisation_schema(),
        "agents": {
            "type": "array",
            "items": closed_object(
                {"name": TEXT, "reference": TEXT, "digest": TEXT, "runtime": TEXT, "left_out": texts}
            ),
            "description": "Agents that were put in; digest is empty for one from a folder.",
        },
        "changes": {**texts, "description": "What was changed, a line each."},
        "verdicts": {"type": "array", "items": verdict_schema()},
        "packages": {
            "type": "array",
            "items": closed_object({"name": TEXT, "version": TEXT}),
            "description": "Installed Debian packages.",
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{SCHEMA.replace('/', ':')}",
        "title": "Manifest of tpu-image build",
        "description": "Sizes are in bytes; output.size is that of the file, output.disk_size that of the disk in it.",
        **closed_object(properties),
    }
