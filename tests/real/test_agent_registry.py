"""Agents from registries: Debian's own on loopback, and one that fails in every way; through skopeo."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agent_images import PROGRAM, entry, layer, oci_layout, program
from registries import Fault, Handler, Server, docker_registry, free_port, misbehaving_registry, need
from tpu_image.agents import references, registry, skopeo
from tpu_image.agents.errors import AgentError
from tpu_image.agents.image import ContainerImage
from tpu_image.agents.manifest import digest_of
from tpu_image.agents.registry import Options
from tpu_image.agents.sources import opened
from tpu_image.agents.spool import Spool

pytestmark = pytest.mark.real

LAYERS = (layer(entry("large", bytes(range(256)) * 4096)), layer(program()))


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials or cache of whoever runs the tests, and no long pauses."""
    need("skopeo", "skopeo")
    for name in ("HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    for name in ("REGISTRY_AUTH_FILE", "DOCKER_CONFIG", "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(registry, "PAUSES", (0.1, 0.1))


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    return oci_layout(tmp_path / "layout", *LAYERS, platforms=["arm64", "amd64"])


def got(source: str, options: Options | None = None) -> str:
    """The digest of an image whose program is there once it is unpacked."""
    with Spool() as spool, opened(source, spool, options) as image:
        assert isinstance(image, ContainerImage)
        assert image.unpack(spool).is_program(PROGRAM)
        return image.digest


def push(layout: Path, target: str, *options: str) -> str:
    """Put a layout into a registry; give the digest of its index."""
    source = f"oci:{layout}:0.0.1"
    subprocess.run(
        [
            "skopeo",
            "copy",
            "--quiet",
            "--all",
            "--dest-tls-verify=false",
            *options,
            source,
            f"docker://{target}",
        ],
        check=True,
    )
    return str(json.loads((layout / "index.json").read_text())["manifests"][0]["digest"])


def test_an_image_comes_from_a_real_registry_and_is_then_in_the_cache(layout: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with docker_registry(tmp_path) as host:
        digest = push(layout, f"{host}/images/vbar_control_agent:0.0.1")
        options = Options(progress=lambda _, done, total: seen.append((done, total)))
        assert got(f"{host}/images/vbar_control_agent:0.0.1@{digest}", options) == digest
        assert got(f"{host}/images/vbar_control_agent:0.0.1") == digest
    assert [
        path.name for path in (tmp_path / "XDG_CACHE_HOME/tpu-image/containers").iterdir() if path.is_dir()
    ] == [digest[7:]]
    assert got(f"{host}/images/vbar_control_agent@{digest}") == digest  # the registry is gone
    assert got(f"{host}/images/vbar_control_agent:0.0.1@{digest}") == digest
    assert all(0 <= done <= total for done, total in seen)


def test_an_image_of_dockers_own_format_keeps_its_digest(layout: Path, tmp_path: Path) -> None:
    with docker_registry(tmp_path) as host:
        target = f"{host}/images/agent:1"
        source = f"oci:{oci_layout(tmp_path / 'plain', *LAYERS)}:0.0.1"
        subprocess.run(
            [
                "skopeo",
                "copy",
                "-q",
                "--format",
                "v2s2",
                "--dest-tls-verify=false",
                source,
                f"docker://{target}",
            ],
            check=True,
        )
        raw = subprocess.run(
            ["skopeo", "inspect", "--raw", "--tls-verify=false", f"docker://{target}"],
            check=True,
            capture_output=True,
        ).stdout
        assert b"vnd.docker.distribution.manifest.v2+json" in raw
        assert got(target) == digest_of(raw)


@pytest.fixture
def guarded(layout: Path, tmp_path: Path) -> Iterator[str]:
    """A registry that lets the user ``u`` in with the password ``p``, with an image."""
    need("htpasswd", "apache2-utils")
    line = subprocess.run(["htpasswd", "-nbB", "u", "p"], check=True, capture_output=True).stdout
    token = subprocess.run(
        ["htpasswd", "-nbB", "oauth2accesstoken", "machine-token"], check=True, capture_output=True
    ).stdout
    (tmp_path / "passwords").write_bytes(line + token)
    with docker_registry(tmp_path, tmp_path / "passwords") as host:
        push(layout, f"{host}/agent:1", "--dest-creds", "u:p")
        yield host


def auth(host: str, user: str = "u", password: str = "p") -> str:
    return json.dumps({"auths": {host: {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}}})


def test_credentials_come_from_a_file_or_dockers_own_or_a_helper(
    guarded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(AgentError, match=r"refuses without .other. credentials; log in"):
        got(f"{guarded}/agent:1")
    wrong = tmp_path / "wrong.json"
    wrong.write_text(auth(guarded, password="other"))
    with pytest.raises(AgentError, match="refuses without"):
        got(f"{guarded}/agent:1", Options(authfile=wrong))
    right = tmp_path / "right.json"
    right.write_text(auth(guarded))
    digest = got(f"{guarded}/agent:1", Options(authfile=right, cache=tmp_path / "1"))
    (tmp_path / "HOME/.docker").mkdir()
    (tmp_path / "HOME/.docker/config.json").write_text(auth(guarded))
    assert got(f"{guarded}/agent:1", Options(cache=tmp_path / "2")) == digest
    (tmp_path / "HOME/.docker/config.json").write_text(json.dumps({"credHelpers": {guarded: "test"}}))
    helper = tmp_path / "docker-credential-test"
    helper.write_text('#!/bin/sh\necho \'{"Username": "u", "Secret": "p"}\'\n')
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert got(f"{guarded}/agent:1", Options(cache=tmp_path / "3")) == digest


def test_a_google_registry_takes_the_token_of_the_machine(
    guarded: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Metadata(Handler):
        def do_GET(self) -> None:  # noqa: N802 - the name that http.server calls
            assert self.headers["Metadata-Flavor"] == "Google"
            self.answer(200, b'{"access_token": "machine-token", "expires_in": 3599}')

    server = Server()
    server.RequestHandlerClass = Metadata
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("GCE_METADATA_HOST", server.host)
    with pytest.raises(AgentError, match="refuses without"):
        got(f"{guarded}/agent:1")  # a stranger's registry never sees the token
    monkeypatch.setattr(references, "GOOGLE", ("localhost",))
    got(f"{guarded}/agent:1")
    server.shutdown()


@pytest.fixture
def server(layout: Path) -> Iterator[Server]:
    with misbehaving_registry(layout) as running:
        yield running


def answers(status: int, times: int = 1_000, **headers: str) -> Fault:
    left = [times]

    def fault(handler: Handler, _: bytes) -> bool:
        left[0] -= 1
        if left[0] < 0:
            return False
        handler.answer(status, b"{}", {k.replace("_", "-"): v for k, v in headers.items()})
        return True

    return fault


def sends(change: bytes | slice, times: int = 1_000) -> Fault:
    """Send other bytes, or a part of them under the full length, so many times."""
    left = [times]

    def fault(handler: Handler, data: bytes) -> bool:
        left[0] -= 1
        if left[0] < 0 or handler.command == "HEAD":
            return False
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(
            change.ljust(len(data), b"x")[: len(data)] if isinstance(change, bytes) else data[change]
        )
        handler.close_connection = True
        return True

    return fault


def hangs(seconds: float = 30, after: int = 100) -> Fault:
    def fault(handler: Handler, data: bytes) -> bool:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data[:after])
        handler.wfile.flush()
        time.sleep(seconds)
        return True

    return fault


def largest_blob(server: Server) -> str:
    return max((len(data), name) for name, (data, _) in server.contents.items())[1]


def test_a_registry_that_is_down_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="cannot be reached; look at the network, or give an archive"):
        got(f"localhost:{free_port()}/agent:1")


def test_an_image_that_is_not_there_is_said_to_be_not_there(server: Server) -> None:
    with pytest.raises(AgentError, match="has no such image; correct the name or the tag"):
        got(f"{server.host}/agent:2")
    assert server.asked("manifests/2") < 3


def test_too_many_requests_are_waited_for_as_long_as_the_registry_says(server: Server) -> None:
    server.faults["manifests/1"] = answers(429, 1, Retry_After="1")
    got(f"{server.host}/agent:1")


def test_too_many_requests_for_ever_come_to_an_end(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "QUESTION_SECONDS", 4)
    server.faults["manifests/1"] = answers(429, Retry_After="1")
    with pytest.raises(AgentError, match=r"too many requests|sent nothing for"):
        got(f"{server.host}/agent:1")


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_is_not_tried_again(server: Server, status: int) -> None:
    server.faults["manifests/1"] = answers(status, WWW_Authenticate='Basic realm="x"')
    with pytest.raises(AgentError, match="refuses without"):
        got(f"{server.host}/agent:1")
    assert server.asked("manifests/1") < 4


def test_a_registry_that_fails_once_is_asked_again(server: Server) -> None:
    server.faults["manifests/1"] = answers(503, 1)
    got(f"{server.host}/agent:1")


def test_a_blob_that_is_cut_short_once_is_brought_whole_and_the_others_are_not_asked_for_again(
    server: Server,
) -> None:
    server.faults[largest_blob(server)] = sends(slice(0, 1000), 1)
    got(f"{server.host}/agent:1")
    small = min((len(data), name) for name, (data, _) in server.contents.items() if data[:2] == b"\x1f\x8b")[
        1
    ]
    assert server.asked(f"blobs/{small}") == 1


def test_a_blob_that_is_always_cut_short_is_said_to_be(server: Server) -> None:
    server.faults[largest_blob(server)] = sends(slice(0, 1000))
    with pytest.raises(AgentError, match="sent something else than the image says"):
        got(f"{server.host}/agent:1")


def test_a_blob_with_another_content_is_not_used(server: Server) -> None:
    server.faults[largest_blob(server)] = sends(b"\x1f\x8bevil")
    with pytest.raises(AgentError, match="sent something else than the image says"):
        got(f"{server.host}/agent:1")


def test_a_manifest_that_is_not_what_its_digest_says_is_not_used(server: Server) -> None:
    digest = "sha256:" + "0" * 64
    server.contents[digest] = server.contents["1"]
    with pytest.raises(AgentError):
        got(f"{server.host}/agent@{digest}")


def test_a_registry_that_sends_no_more_is_given_up(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "STALL_SECONDS", 1.5)
    monkeypatch.setattr(registry, "PAUSES", ())
    server.faults[largest_blob(server)] = hangs()
    with pytest.raises(AgentError, match="sent nothing for"):
        got(f"{server.host}/agent:1")


def test_a_registry_that_accepts_and_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "QUESTION_SECONDS", 2)
    monkeypatch.setattr(registry, "PAUSES", ())
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        with pytest.raises(AgentError, match=r"sent nothing for|cannot be reached"):
            got(f"localhost:{listener.getsockname()[1]}/agent:1")


def test_a_damaged_cache_is_found_out_and_brought_again(server: Server, tmp_path: Path) -> None:
    digest = got(f"{server.host}/agent:1")
    cache = tmp_path / "XDG_CACHE_HOME/tpu-image/containers" / digest[7:]
    blob = max((cache / "blobs/sha256").iterdir(), key=lambda path: path.stat().st_size)
    blob.write_bytes(b"x" * blob.stat().st_size)
    assert got(f"{server.host}/agent:1") == digest


def test_the_cache_does_not_grow_without_end(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "CACHE_LIMIT", 1)
    cache = tmp_path / "cache"
    (cache / "old").mkdir(parents=True)
    digest = got(f"{server.host}/agent:1", Options(cache=cache))
    assert sorted(path.name for path in cache.iterdir()) == [digest[7:]]


def test_without_skopeo_it_is_named_with_what_to_give_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(AgentError, match=r"skopeo: .* is not installed; install it, or give an archive"):
        got("gcr.io/x/agent:1")


def test_what_skopeo_says_and_is_not_known_is_quoted() -> None:
    error = skopeo.explained('time="x" level=fatal msg="it \\"just\\" broke"\n', "image")
    assert 'skopeo fails: it "just" broke' in str(error)


PULL = """
import sys
from pathlib import Path
from tpu_image.agents.registry import Options
from tpu_image.agents.sources import opened
from tpu_image.agents.spool import Spool
with Spool() as spool, opened(sys.argv[1], spool, Options(cache=Path(sys.argv[2]))) as image:
    print(image.digest)
"""


def test_a_pull_that_is_killed_takes_skopeo_with_it_and_the_next_one_goes_on(
    server: Server, tmp_path: Path
) -> None:
    large = largest_blob(server)
    server.faults[large] = hangs()
    command = [sys.executable, "-c", PULL, f"{server.host}/agent:1", str(tmp_path / "cache")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, env=environment) as process:
        wait_until(lambda: server.asked(large) > 0)
        children = [
            int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        ]
        assert children
        process.kill()
    wait_until(lambda: not any(is_alive(pid) for pid in children))
    del server.faults[large]
    assert subprocess.run(command, env=environment, check=True, capture_output=True).stdout
    assert [path.suffix for path in (tmp_path / "cache").iterdir() if path.is_dir()] == [""]


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
