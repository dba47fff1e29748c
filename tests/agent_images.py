"""Container images made by hand: layers from tables, archives and layouts around them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

REFERENCE = "gcr.io/cloud-tpu-v2-images/vbar_control_agent:0.0.1"
PROGRAM = "/usr/bin/vbar_control_agent"
CONFIGURATION: dict[str, Any] = {"Entrypoint": [PROGRAM], "Env": ["PATH=/usr/bin", "MODE=50% $x"]}
GZIP_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


def entry(name: str, content: bytes = b"", **attributes: Any) -> tuple[tarfile.TarInfo, bytes]:
    """One entry of a layer; attributes are those of :class:`tarfile.TarInfo`."""
    information = tarfile.TarInfo(name)
    information.size = len(content)
    for key, value in attributes.items():
        setattr(information, key, value)
    return information, content


def directory(name: str, mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.DIRTYPE, mode=mode)


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.SYMTYPE, linkname=target)


def hard_link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.LNKTYPE, linkname=target)


def program(content: bytes = b"\x7fELF") -> tuple[tarfile.TarInfo, bytes]:
    return entry(PROGRAM.lstrip("/"), content, mode=0o755)


def layer(*entries: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    """A layer's tar; names stand in it as they are given."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for information, content in entries:
            archive.addfile(information, io.BytesIO(content))
    return buffer.getvalue()


def digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def configuration(layers: Sequence[bytes], **settings: Any) -> bytes:
    """The configuration of an image of plain layers."""
    document = {
        "os": settings.pop("os", "linux"),
        "architecture": settings.pop("architecture", "amd64"),
        "config": {**CONFIGURATION, **settings},
        "rootfs": {"type": "layers", "diff_ids": [digest(one) for one in layers]},
    }
    return json.dumps(document).encode()


def docker_archive(path: Path, *layers: bytes, names: Sequence[str] = (REFERENCE,), **settings: Any) -> Path:
    """An archive as ``docker save`` writes it."""
    described = configuration(layers, **settings)
    parts = [f"{number}/layer.tar" for number in range(len(layers))]
    listed = [{"Config": "config.json", "RepoTags": list(names), "Layers": parts}]
    entries = [entry("config.json", described), entry("manifest.json", json.dumps(listed).encode())]
    entries += [entry(name, data) for name, data in zip(parts, layers, strict=True)]
    path.write_bytes(layer(*entries))
    return path


def oci_layout(path: Path, *layers: bytes, platforms: Sequence[str] = (), **settings: Any) -> Path:
    """An OCI layout; with platforms, an index in which the image of each is the same but for its configuration."""
    blobs = path / "blobs/sha256"
    blobs.mkdir(parents=True)

    def put(data: bytes, media_type: str) -> dict[str, Any]:
        (blobs / hashlib.sha256(data).hexdigest()).write_bytes(data)
        return {"mediaType": media_type, "digest": digest(data), "size": len(data)}

    def image(**changed: Any) -> dict[str, Any]:
        manifest = {
            "schemaVersion": 2,
            "config": put(
                configuration(layers, **settings, **changed), "application/vnd.oci.image.config.v1+json"
            ),
            "layers": [put(gzip.compress(one, 1, mtime=0), GZIP_LAYER) for one in layers],
        }
        return put(json.dumps(manifest).encode(), "application/vnd.oci.image.manifest.v1+json")

    if platforms:
        manifests = [
            {**image(architecture=name), "platform": {"os": "linux", "architecture": name}}
            for name in platforms
        ]
        index = {"schemaVersion": 2, "manifests": manifests}
        top = put(json.dumps(index).encode(), "application/vnd.oci.image.index.v1+json")
    else:
        top = image()
    top["annotations"] = {"org.opencontainers.image.ref.name": "0.0.1"}
    (path / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (path / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [top]}))
    return path


def packed(folder: Path, archive: Path) -> Path:
    """A folder as a tar archive: an OCI layout becomes what is called an oci-archive."""
    with tarfile.open(archive, "w") as file:
        file.add(folder, ".")
    return archive


def stand_in(folder: Path) -> bytes:
    """A static program that stands in for the agent (``stand_in_agent.c``)."""
    source = Path(__file__).with_name("stand_in_agent.c")
    target = folder / "vbar_control_agent"
    try:
        subprocess.run(["gcc", "-static", "-O1", "-o", target, source], check=True)
    except FileNotFoundError:
        pytest.fail("gcc is missing: install gcc and libc6-dev")
    return target.read_bytes()
