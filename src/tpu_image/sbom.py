"""A software bill of materials of an image: its Debian packages, as SPDX 2.3 or CycloneDX 1.6 in JSON.

Formats: spdx.github.io/spdx-spec/v2.3, chapters 6 to 11; cyclonedx.org/docs/1.6/json. Equal images have equal bills:
times are the build's, identifiers are derived of the image's SHA-256.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tpu_image import __version__
from tpu_image.build import Built, Request
from tpu_image.report.json import dump
from tpu_image.report.printable import printable

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "tpu-image/sbom")

SUFFIXES: Mapping[str, str] = {"spdx": ".spdx.json", "cyclonedx": ".cdx.json"}
"""How the names of files end, by format: what their specifications recommend."""

UNKNOWN = "NOASSERTION"
"""SPDX's word for what was not looked at."""


def path_of(given: str, image: Path) -> Path:
    """Give the file that ``--sbom`` means: a format's name stands for a file beside the image.

    Raises:
        ValueError: it is neither a format nor the name of a file that says which.
    """
    if given in SUFFIXES:
        return image.with_name(image.name + SUFFIXES[given])
    if not given.endswith(tuple(SUFFIXES.values())):
        ways = " or ".join(f"FILE{suffix}" for suffix in SUFFIXES.values())
        raise ValueError(f"{given!r} does not say which format: give {' or '.join(SUFFIXES)}, or {ways}")
    return Path(given)


def sbom(path: Path, request: Request, built: Built) -> str:
    """Write the bill whose format the name of its file says, as JSON text."""
    form = next(form for form, suffix in SUFFIXES.items() if path.name.endswith(suffix))
    return dump(_FORMATS[form](request, built))


def _created(request: Request) -> str:
    return datetime.fromtimestamp(request.time, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _digest(built: Built) -> str:
    return built.archive.sha256 if built.archive else ""


def _cyclonedx(request: Request, built: Built) -> dict[str, Any]:
    image = {
        "type": "operating-system",
        "bom-ref": "image",
        "name": printable(request.output.name),
        "hashes": [{"alg": "SHA-256", "content": _digest(built)}],
    }
    components = []
    for package in built.packages:
        purl = package.purl(built.distribution)
        name, version = printable(package.name), printable(package.version)
        components.append(
            {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
        )
    tool = {"type": "application", "name": "tpu-image", "version": __version__}
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, 'cyclonedx ' + _digest(built))}",
        "version": 1,
        "metadata": {
            "timestamp": _created(request),
            "tools": {"components": [tool]},
            "component": image,
        },
        "components": components,
        "dependencies": [{"ref": "image", "dependsOn": [component["bom-ref"] for component in components]}],
    }


def _spdx(request: Request, built: Built) -> dict[str, Any]:
    image = {
        **_spdx_package("SPDXRef-image", request.output.name),
        "checksums": [{"algorithm": "SHA256", "checksumValue": _digest(built)}],
        "primaryPackagePurpose": "OPERATING-SYSTEM",
    }
    packages = []
    for number, package in enumerate(built.packages, 1):
        reference = {
            "referenceCategory": "PACKAGE-MANAGER",
            "referenceType": "purl",
            "referenceLocator": package.purl(built.distribution),
        }
        described = _spdx_package(f"SPDXRef-package-{number}", package.name)
        packages.append({**described, "versionInfo": printable(package.version), "externalRefs": [reference]})
    describes = _relationship("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-image")
    contains = [_relationship("SPDXRef-image", "CONTAINS", package["SPDXID"]) for package in packages]
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": printable(request.output.name),
        "documentNamespace": f"urn:uuid:{uuid.uuid5(NAMESPACE, 'spdx ' + _digest(built))}",
        "creationInfo": {"created": _created(request), "creators": [f"Tool: tpu-image-{__version__}"]},
        "packages": [image, *packages],
        "relationships": [describes, *contains],
    }


def _spdx_package(identifier: str, name: str) -> dict[str, Any]:
    unknown = dict.fromkeys(("downloadLocation", "licenseConcluded", "licenseDeclared"), UNKNOWN)
    return {
        "SPDXID": identifier,
        "name": printable(name),
        "filesAnalyzed": False,
        "copyrightText": UNKNOWN,
        **unknown,
    }


def _relationship(one: str, kind: str, other: str) -> dict[str, str]:
    return {"spdxElementId": one, "relationshipType": kind, "relatedSpdxElement": other}


_FORMATS: Mapping[str, Callable[[Request, Built], dict[str, Any]]] = {
    "spdx": _spdx,
    "cyclonedx": _cyclonedx,
}
