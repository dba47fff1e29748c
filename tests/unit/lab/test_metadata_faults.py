"""Faults of the metadata server: how they are asked for, what a client meets, and how long."""

from __future__ import annotations

import http.client
import json
import socket
import time
from pathlib import Path

import pytest
import yaml

from tpu_image.catalogue.choices import ChoiceError
from tpu_image.lab import chips
from tpu_image.lab.metadata import faults, tpu_attributes
from tpu_image.lab.metadata import settings as metadata_settings
from tpu_image.lab.metadata.faults import Fault
from tpu_image.lab.metadata.machine import Machine
from tpu_image.lab.metadata.server import MetadataServer, serving
from tpu_image.lab.metadata.tpu_attributes import Origin

TPU_ENV = "/computeMetadata/v1/instance/attributes/tpu-env"
NAME = "/computeMetadata/v1/instance/name"
MACHINE = Machine(
    attributes=tpu_attributes.attributes(
        chips.parse("v6e:4"), origin=Origin.TPU_API, node="one", zone="us-east5-a", address="10.128.0.15"
    )
)

WORDS = {
    "metadata=down": Fault("down"),
    "metadata=down:30s": Fault("down", 30.0),
    "metadata=503:2x": Fault("503", times=2),
    "metadata=slow:0.5": Fault("slow", 0.5),
    " metadata=html ": Fault("html"),
}


@pytest.mark.parametrize(("words", "fault"), WORDS.items())
def test_a_fault_is_read(words: str, fault: Fault) -> None:
    assert faults.parse(words) == fault
    assert faults.parse(str(fault)) == fault


WRONG = {
    "down": "'down' is no fault; write metadata=KIND, such as metadata=down:30s",
    "disk=slow": "is no fault",
    "metadata=dwn": "unknown fault of the metadata server 'dwn'; did you mean down?",
    "metadata=zzz": "give one of down, hang, slow",
    "metadata=": "unknown fault",
    "metadata=down:": "'' is no extent of down; write seconds as 30s, or requests as 2x",
    "metadata=down:-1s": "is no extent",
    "metadata=down:1e9": "is no extent",
    "metadata=down:٣s": "is no extent",
    "metadata=down:99999s": "too long for down; give at most 3600s",
    "metadata=" + "x" * 9000: "unknown fault",
}


@pytest.mark.parametrize(("words", "message"), WRONG.items(), ids=[words[:25] for words in WRONG])
def test_what_is_no_fault_is_said_in_one_line(words: str, message: str) -> None:
    with pytest.raises(ChoiceError) as refused:
        faults.parse(words)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


def ask(server: MetadataServer, path: str, seconds: float = 20) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection(server.host, timeout=seconds)
    try:
        connection.request("GET", path, headers={"Metadata-Flavor": "Google"})
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


ANSWERS = {
    "503": (503, "text/html; charset=UTF-8", "Google"),
    "429": (429, "text/html; charset=UTF-8", "Google"),
    "403": (403, "text/html; charset=UTF-8", "Google"),
    "html": (200, "text/html; charset=UTF-8", "Google"),
    "portal": (200, "text/html; charset=UTF-8", None),
}


@pytest.mark.parametrize(("kind", "expected"), ANSWERS.items())
def test_an_answer_takes_the_place_of_the_right_one(kind: str, expected: tuple[int, str, str | None]) -> None:
    with serving(MACHINE, [Fault(kind)]) as server:
        response, body = ask(server, NAME)
        assert (
            response.status,
            response.headers["Content-Type"],
            response.headers["Metadata-Flavor"],
        ) == expected
        assert body.startswith(b"<!DOCTYPE html>")
        assert server.requests[0].fault == f"metadata={kind}"


ENDS = {
    "down": ConnectionResetError,
    "truncated": http.client.IncompleteRead,
    "garbage": http.client.BadStatusLine,
    "hang": TimeoutError,
    "drip": TimeoutError,
}


@pytest.mark.parametrize(("kind", "error"), ENDS.items())
def test_a_broken_answer_is_none(kind: str, error: type[Exception]) -> None:
    with serving(MACHINE, [Fault(kind)]) as server:
        # A byte now and then keeps a plain time-out from ever coming: read as much as there is, and no more.
        seconds = 0.05 if kind == "drip" else 0.5
        with pytest.raises(error):
            ask(server, NAME, seconds)
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", server.server_port), timeout=5)


def test_a_flood_does_not_end() -> None:
    with serving(MACHINE, [Fault("flood")]) as server:
        connection = http.client.HTTPConnection(server.host, timeout=20)
        connection.request("GET", NAME, headers={"Metadata-Flavor": "Google"})
        assert len(connection.getresponse().read(4 << 20)) == 4 << 20
        connection.close()


def test_a_slow_answer_is_the_right_one_later() -> None:
    with serving(MACHINE, [Fault("slow", 0.5)]) as server:
        started = time.monotonic()
        assert ask(server, NAME)[1] == b"tpu-image-lab"
        assert time.monotonic() - started >= 0.5


def test_a_fault_of_so_many_requests_ends_after_them() -> None:
    with serving(MACHINE, [Fault("503", times=2), Fault("429", times=1)]) as server:
        assert [ask(server, NAME)[0].status for _ in range(4)] == [503, 503, 429, 200]
        assert [one.fault for one in server.requests] == ["metadata=503:2x"] * 2 + ["metadata=429:1x", ""]


def test_the_time_of_a_fault_runs_from_the_first_request() -> None:
    with serving(MACHINE, [Fault("503", 1.0)]) as server:
        time.sleep(1.1)
        assert ask(server, NAME)[0].status == 503
        time.sleep(1.1)
        assert ask(server, NAME)[0].status == 200


def test_without_the_attributes_it_is_no_tpu_machine() -> None:
    with serving(MACHINE, [Fault("unset")]) as server:
        assert ask(server, TPU_ENV)[0].status == 404
        assert json.loads(ask(server, "/computeMetadata/v1/instance/attributes/?recursive=true")[1]) == {}
        assert ask(server, NAME)[1] == b"tpu-image-lab"


def test_an_empty_a_malformed_and_a_hostile_value_are_what_they_say() -> None:
    found = {}
    for kind in ("empty", "malformed", "hostile"):
        with serving(MACHINE, [Fault(kind)]) as server:
            found[kind] = ask(server, TPU_ENV)[1].decode()
            assert ask(server, NAME)[1] == b"tpu-image-lab"
    assert found["empty"] == ""
    with pytest.raises(yaml.YAMLError):
        yaml.safe_load(found["malformed"])
    values = yaml.safe_load(found["hostile"])
    assert values["COMMAND"] == "$(touch /run/tpu-image-executed)"
    assert values["WINDOWS"] == "C:\\new\\table"


SETTINGS = {
    "a=b": ("a", "b"),
    "startup-script=#!/bin/sh\necho a=b": ("startup-script", "#!/bin/sh\necho a=b"),
    "empty=": ("empty", ""),
}


@pytest.mark.parametrize(("words", "expected"), SETTINGS.items())
def test_an_attribute_is_set_from_the_command_line(words: str, expected: tuple[str, str]) -> None:
    assert metadata_settings.attribute(words) == expected


def test_an_attribute_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("#cloud-config\n")
    assert metadata_settings.attributes(["user-data=x", f"user-data=@{tmp_path / 'data'}"]) == {
        "user-data": "#cloud-config\n"
    }


def test_what_compute_engine_would_not_take_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "large").write_bytes(b"x" * (256 * 1024 + 1))
    (tmp_path / "large and cut amid a letter").write_text("é" * 131_073, encoding="utf-8")
    wrong = {
        "key": "is no metadata; write KEY=VALUE",
        "a b=c": "is no key of metadata",
        "=c": "is no key",
        "k" * 129 + "=c": "is no key",
        "../x=c": "is no key",
        f"a=@{tmp_path / 'none'}": "none: No such file or directory",
        f"a=@{tmp_path}": "Is a directory",
        f"user-data=@{tmp_path / 'binary'}": "set user-data-encoding=base64",
        f"a=@{tmp_path / 'large'}": "longer than the 262144 bytes",
        f"a=@{tmp_path / 'large and cut amid a letter'}": "longer than the 262144 bytes",
    }
    for words, message in wrong.items():
        with pytest.raises(ChoiceError) as refused:
            metadata_settings.attribute(words)
        assert message in str(refused.value)
