"""The metadata client against a server with every fault."""

from __future__ import annotations

import socket
import time

import pytest

from metadata_faults import metadata as served
from tpu_image.lab.metadata.faults import Fault
from tpu_image.runtime import metadata
from tpu_image.runtime.metadata import MetadataServer

PATH = "instance/attributes/tpu-env"


def server(
    host: str, *, seconds: float = 5.0, attempt_seconds: float = 1.0, fallback: str = ""
) -> MetadataServer:
    return MetadataServer(host, fallback, seconds=seconds, attempt_seconds=attempt_seconds)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "FIRST_PAUSE_SECONDS", 0.01)


def test_a_value_is_read_and_the_request_says_what_it_is() -> None:
    with served({"tpu-env": "TYPE: 'V6E'\n"}) as running:
        assert server(running.host).read(PATH) == b"TYPE: 'V6E'\n"
        assert [(one.path, one.status) for one in running.requests] == [(f"/computeMetadata/v1/{PATH}", 200)]


FINAL = [
    (
        "404 of the server itself, a page",
        "instance/attributes/none",
        "",
        metadata.NotSetError,
        "none is not set",
    ),
    ("403", PATH, "403", metadata.ForbiddenError, "refuses"),
    ("400", "instance/service-accounts/default/identity", "", metadata.UnexpectedStatusError, "400"),
    ("a redirect", "instance/attributes", "", metadata.UnexpectedStatusError, "directory"),
    (
        "a body announced as huge",
        "instance/attributes/huge",
        "",
        metadata.TooLargeError,
        "longer than 1048576",
    ),
    ("a body without end", PATH, "flood", metadata.TooLargeError, "longer than 1048576"),
]


@pytest.mark.parametrize(
    ("path", "fault", "kind", "reason"), [case[1:] for case in FINAL], ids=[case[0] for case in FINAL]
)
def test_an_answer_that_will_not_change_is_not_asked_for_again(
    path: str, fault: str, kind: type[metadata.MetadataError], reason: str
) -> None:
    with served({"tpu-env": "right", "huge": "x" * (2 << 20)}, *filter(None, [fault])) as running:
        with pytest.raises(kind, match=reason):
            server(running.host).read(path)
        assert len(running.requests) == 1


TRANSIENT = {
    "503": metadata.ServerError,
    "429": metadata.ServerError,
    "portal": metadata.ForeignAnswerError,
    "html": metadata.HtmlAnswerError,
    "truncated": metadata.TruncatedAnswerError,
    "down": metadata.UnreachableError,
    "hang": metadata.UnreachableError,
    "drip": metadata.UnreachableError,
    "drip-headers": metadata.UnreachableError,
    "garbage": metadata.ForeignAnswerError,
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", TRANSIENT)
def test_what_may_pass_is_asked_for_again_until_it_does(fault: str) -> None:
    with served({"tpu-env": "right"}, Fault(fault, times=2)) as running:
        assert server(running.host, attempt_seconds=2).read(PATH) == b"right"
        assert len(running.requests) == 3


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "kind"), TRANSIENT.items())
def test_what_does_not_pass_ends_at_the_deadline_as_what_it_is(
    fault: str, kind: type[metadata.MetadataError]
) -> None:
    with served({"tpu-env": "right"}, fault) as running:
        started = time.monotonic()
        with pytest.raises(kind, match="gave up after"):
            server(running.host, seconds=2, attempt_seconds=1).read(PATH)
        assert time.monotonic() - started < 10


def test_a_name_that_does_not_resolve_is_replaced_by_the_address() -> None:
    with served({"tpu-env": "right"}) as running:
        assert server("no-such-name.invalid", fallback=running.host).read(PATH) == b"right"


def test_a_look_up_that_hangs_leaves_time_for_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*arguments: object, **keywords: object) -> list[object]:
        time.sleep(20)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    with served({"tpu-env": "right"}) as running:
        assert server("metadata.google.internal", fallback=running.host).read(PATH) == b"right"


def test_a_name_that_resolves_to_several_addresses_is_tried_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    with served({"tpu-env": "right"}) as running:
        closed = (socket.AF_INET, 1, 6, "", ("127.0.0.2", 9))
        open_one = (socket.AF_INET, 1, 6, "", ("127.0.0.1", running.server_port))
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [closed, open_one])
        assert server("metadata").read(PATH) == b"right"


def test_an_address_that_says_nothing_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, served({"tpu-env": "right"}) as running:
        held = [socket.socket() for _ in range(3)]
        for one in held:  # with its queue full, the kernel answers no more of them
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        silent = (socket.AF_INET, 1, 6, "", full.getsockname())
        open_one = (socket.AF_INET, 1, 6, "", ("127.0.0.1", running.server_port))
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [silent, open_one])
        assert server("metadata", seconds=4, attempt_seconds=2).read(PATH) == b"right"
        for one in held:
            one.close()


@pytest.mark.parametrize(
    "host", ["no-such-name.invalid", "127.0.0.1:1", "a" * 100, "x:port", "", "a b", f"x:000001{'0' * 5000}"]
)
def test_a_host_that_cannot_be_asked_is_an_error_of_one_line(host: str) -> None:
    with pytest.raises(metadata.TransientError) as failed:
        server(host, seconds=0.2).read(PATH)
    assert "\n" not in str(failed.value)


def test_another_host_may_be_named_and_then_has_no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    chosen = MetadataServer.of_this_machine(1.0)
    assert (chosen.host, chosen.fallback) == ("127.0.0.1:1", "")
    monkeypatch.delenv("GCE_METADATA_HOST")
    chosen = MetadataServer.of_this_machine(1.0)
    assert (chosen.host, chosen.fallback) == ("metadata.google.internal", "169.254.169.254")


def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with served({"tpu-env": "right"}) as running:
        assert server(running.host).read(PATH) == b"right"
