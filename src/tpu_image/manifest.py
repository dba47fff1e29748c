"""What a build did, written down beside its image."""

from __future__ import annotations

from typing import Any

from tpu_image import __version__
from tpu_image.build import Built, Request
from tpu_image.report.json import dump, profile_document, verdict_document
from tpu_image.report.printable import printable

SCHEMA = "tpu-image/build/1"
"""Name of the shape: the number grows when a reader of the old shape could be misled."""


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
        "changes": [printable(str(change)) for change in built.changes],
        "verdicts": [verdict_document(verdict) for verdict in built.verdicts],
        "packages": [
            {"name": printable(name), "version": printable(version)} for name, version in built.packages
        ],
    }
    return dump(content)
