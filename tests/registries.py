"""Registries on loopback: Debian's real one, and one that misbehaves as it is told."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

Fault = Callable[["Handler", bytes], bool]
"""Answers a request in place of the registry, given what that would send; False to leave it to the registry."""


def need(program: str, package: str) -> None:
    """Fail where a tool is missing, naming what to install."""
    if shutil.which(program) is None:
        pytest.fail(f"{program} is missing: install {package}")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def docker_registry(folder: Path, passwords: Path | None = None) -> Iterator[str]:
    """Debian's registry, over HTTP, with basic authentication where a file of passwords is given."""
    need("docker-registry", "docker-registry")
    port = free_port()
    auth = f"auth: {{htpasswd: {{realm: test, path: {passwords}}}}}\n" if passwords else ""
    configuration = folder / "registry.yml"
    configuration.write_text(
        f"version: 0.1\nlog: {{level: error}}\nhttp: {{addr: 127.0.0.1:{port}}}\n"
        f"storage: {{filesystem: {{rootdirectory: {folder / 'storage'}}}}}\n{auth}"
    )
    with (folder / "registry.log").open("wb") as log:
        process = subprocess.Popen(["docker-registry", "serve", configuration], stdout=log, stderr=log)
        try:
            for _ in range(300):
                with contextlib.suppress(urllib.error.HTTPError, OSError):
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                time.sleep(0.1)
            yield f"localhost:{port}"
        finally:
            process.terminate()
            process.wait(timeout=30)


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers as the distribution-spec says, unless a fault says otherwise."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        registry = self.server
        registry.requests.append((self.path, dict(self.headers)))
        name = self.path.rpartition("/")[2]
        found = registry.contents.get(name)
        data, media_type = found or (b"", "")
        for part, fault in registry.faults.items():
            if part in self.path and fault(self, data):
                return
        if self.path == "/v2/":
            self.answer(200, b"{}")
        elif found is None:
            self.answer(404, b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}')
        else:
            self.answer(200, data, {"Content-Type": media_type})

    def answer(self, status: int, data: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.contents: dict[str, tuple[bytes, str]] = {}
        self.faults: dict[str, Fault] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []

    @property
    def host(self) -> str:
        return f"localhost:{self.server_address[1]}"

    def asked(self, part: str) -> int:
        """How often a path with this part was asked for."""
        return sum(part in path for path, _ in self.requests)


@contextlib.contextmanager
def misbehaving_registry(layout: Path) -> Iterator[Server]:
    """A registry that holds one OCI layout as the tag ``1``."""
    server = Server()
    (top,) = json.loads((layout / "index.json").read_text())["manifests"]
    for blob in (layout / "blobs/sha256").iterdir():
        data = blob.read_bytes()
        media_type = "application/octet-stream"
        if data[:1] == b"{" and b'"schemaVersion"' in data:
            kind = "index" if b'"manifests"' in data else "manifest"
            media_type = f"application/vnd.oci.image.{kind}.v1+json"
        server.contents[f"sha256:{hashlib.sha256(data).hexdigest()}"] = (data, media_type)
    server.contents["1"] = server.contents[top["digest"]]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
