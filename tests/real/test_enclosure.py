"""What runs in the enclosure sees the emulated Compute Engine, nothing of the host's network, and ends with us."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tpu_image.lab.enclosure import GUEST_PORT, Enclosure, EnclosureError, enclosed
from tpu_image.lab.forward import forwarding

pytestmark = pytest.mark.real

CONNECT = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5) as connection:
        print(connection.recv(100).decode())
except OSError as error:
    print(type(error).__name__)
"""


def run(folder: Path, command: list[str], meanwhile: Callable[[Enclosure], object] = lambda _: None) -> str:
    """Run a program in an enclosure and give what it printed."""
    reading, writing = os.pipe()
    with (
        os.fdopen(reading) as output,
        enclosed(
            command, environment=dict(os.environ), descriptors=(), output=writing, folder=folder
        ) as enclosure,
    ):
        os.close(writing)
        meanwhile(enclosure)
        enclosure.process.wait(60)
        return output.read().strip()


def test_the_metadata_server_is_at_its_address(tmp_path: Path) -> None:
    def serve(enclosure: Enclosure) -> None:
        connection, _ = enclosure.http.accept()
        with connection:
            connection.sendall(b"metadata")

    assert run(tmp_path, [sys.executable, "-c", CONNECT, "169.254.169.254", "80"], serve) == "metadata"


def test_names_are_asked_of_us(tmp_path: Path) -> None:
    assert run(tmp_path, ["cat", "/etc/resolv.conf"]) == "nameserver 169.254.169.254"
    assert Path("/etc/resolv.conf").read_text() != "nameserver 169.254.169.254\n"


def test_the_hosts_own_servers_are_out_of_reach(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        told = run(tmp_path, [sys.executable, "-c", CONNECT, "127.0.0.1", port])
    assert told == "ConnectionRefusedError"


def test_other_addresses_are_out_of_reach(tmp_path: Path) -> None:
    assert run(tmp_path, [sys.executable, "-c", CONNECT, "192.0.2.1", "80"]) == "OSError"


def test_a_port_of_the_host_leads_inside(tmp_path: Path) -> None:
    serve = (
        f"import socket\nwith socket.create_server(('127.0.0.1', {GUEST_PORT})) as s:\n"
        " s.accept()[0].sendall(b'SSH')\n"
    )

    def connect(enclosure: Enclosure) -> None:
        with forwarding(0, enclosure.connections) as port:
            end = time.monotonic() + 60
            data = b""
            while not data and time.monotonic() < end:
                with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
                    data = connection.recv(10)
                time.sleep(0.05)
            assert data == b"SSH"

    run(tmp_path, [sys.executable, "-c", serve], connect)


def test_where_nothing_listens_inside_a_connection_ends_however_many_there_were(tmp_path: Path) -> None:
    def connect(enclosure: Enclosure) -> None:
        with forwarding(0, enclosure.connections) as port:
            for _ in range(2 * len(enclosure.connections)):
                with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
                    assert connection.recv(10) == b""
        enclosure.process.kill()

    run(tmp_path, ["sleep", "1000"], connect)


def test_it_ends_with_whoever_started_it(tmp_path: Path) -> None:
    program = f"""
import os, time
from pathlib import Path
from tpu_image.lab.enclosure import enclosed
folder = Path({str(tmp_path)!r})
with enclosed(['sleep', '1000'], environment=dict(os.environ), descriptors=(), output=2, folder=folder) as it:
    print(it.process.pid, flush=True)
    time.sleep(1000)
"""
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        inside = int(parent.stdout.readline())
        os.kill(inside, 0)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    end = time.monotonic() + 30
    while Path(f"/proc/{inside}/exe").exists():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_where_namespaces_cannot_be_had_it_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "unshare").write_text("#!/bin/sh\necho 'unshare failed: Operation not permitted' >&2\nexit 1\n")
    (tools / "unshare").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    with pytest.raises(EnclosureError, match="unshare"):
        run(tmp_path, ["true"])
