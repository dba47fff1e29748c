"""What a customisation did, as a part of the manifest. Scripts are named by their SHA-256: their text may be secret."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tpu_image.customise.execution import Executed
from tpu_image.report.printable import printable
from tpu_image.report.schema import TEXT, closed_object


def customisation_document(executed: Executed, changes: Sequence[str]) -> dict[str, Any]:
    """Write down what was executed, and the lines that placing, unpacking and clearing gave."""
    return {
        "method": executed.method or "files",
        "packages": [
            {
                "name": printable(change.name),
                "before": printable(change.before),
                "after": printable(change.after),
            }
            for change in executed.packages
        ],
        "scripts": [{"name": printable(script.name), "sha256": script.sha256} for script in executed.scripts],
        "kernel": printable(executed.kernel),
        "environments": [printable(path) for path in executed.environments],
        "changes": [printable(line) for line in changes],
    }


def customisation_schema() -> dict[str, Any]:
    """Give the schema of :func:`customisation_document`."""
    package = closed_object({"name": TEXT, "before": TEXT, "after": TEXT})
    script = closed_object({"name": TEXT, "sha256": TEXT | {"pattern": "^[0-9a-f]{64}$"}})
    return closed_object(
        {
            "method": TEXT | {"description": "How programs of the image were run; files where none was."},
            "packages": {
                "type": "array",
                "items": package,
                "description": "Packages whose version changed; blank where it was or is not installed.",
            },
            "scripts": {
                "type": "array",
                "items": script,
                "description": "What ran, by the SHA-256 of its text.",
            },
            "kernel": TEXT | {"description": "File in /boot of the kernel that was made the default."},
            "environments": {"type": "array", "items": TEXT, "description": "Python environments."},
            "changes": {
                "type": "array",
                "items": TEXT,
                "description": "Files and folders placed or cleared.",
            },
        }
    )
