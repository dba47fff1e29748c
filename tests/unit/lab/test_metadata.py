"""The emulated metadata server against what Compute Engine's documentation says of the real one."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tpu_image.catalogue.hardware import MACHINE_TYPES, MachineType
from tpu_image.lab import chips
from tpu_image.lab.metadata import nodes, tpu_attributes
from tpu_image.lab.metadata.machine import Machine
from tpu_image.lab.metadata.server import CONNECTIONS_LIMIT, MetadataServer, serving
from tpu_image.lab.metadata.tpu_attributes import Origin

V1 = "/computeMetadata/v1/"
FLAVOR = {"Metadata-Flavor": "Google"}
MACHINE = Machine(
    name="one",
    attributes={"greeting": "grüß dich", "enable-guest-attributes": "TRUE", "user-data": "#cloud-config\n"},
    project_attributes={"ssh-keys": "me:ssh-ed25519 AAAA"},
)


@pytest.fixture(scope="module")
def shared() -> Iterator[MetadataServer]:
    with serving(MACHINE) as server:
        yield server


@pytest.fixture
def server() -> Iterator[MetadataServer]:
    with serving(MACHINE) as server:
        yield server


def ask(
    server: MetadataServer,
    path: str,
    headers: dict[str, str] = FLAVOR,
    *,
    method: str = "GET",
    body: str | None = None,
) -> tuple[http.client.HTTPResponse, str]:
    connection = http.client.HTTPConnection(server.host, timeout=20)
    connection.request(method, path, headers=headers, body=None if body is None else body.encode())
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response, text


VALUES = {
    "instance/id": "4242424242424242424",
    "instance/name": "one",
    "instance/zone": "projects/123456789012/zones/us-east5-a",
    "instance/hostname": "one.us-east5-a.c.tpu-image-lab.internal",
    "instance/machine-type": "projects/123456789012/machineTypes/ct6e-standard-4t",
    "instance/attributes/greeting": "grüß dich",
    "instance/attributes/": "greeting\nenable-guest-attributes\nuser-data\n",
    "instance/network-interfaces/": "0/\n",
    "instance/network-interfaces/0/ip": "10.128.0.15",
    "instance/network-interfaces/0/access-configs/0/type": "ONE_TO_ONE_NAT",
    "instance/service-accounts/default/": "aliases\nemail\nidentity\nscopes\ntoken\n",
    "instance/service-accounts/default/scopes": "https://www.googleapis.com/auth/cloud-platform\n",
    "instance/tags": "[]",
    "instance/tags?alt=text": "",
    "instance/name?alt=json": '"one"',
    "instance//name": "one",
    "project/project-id": "tpu-image-lab",
    "project/numeric-project-id": "123456789012",
    "project/attributes/ssh-keys": "me:ssh-ed25519 AAAA",
    "universe/universe-domain": "googleapis.com",
    "": "instance/\noslogin/\nproject/\nuniverse/\n",
    "instance/disks/?recursive=true&alt=text": (
        "0/device-name one\n0/index 0\n0/interface SCSI\n0/mode READ_WRITE\n0/type PERSISTENT-BALANCED\n"
    ),
    "instance/attributes/?recursive=True": json.dumps(dict(MACHINE.attributes), separators=(",", ":")),
}


@pytest.mark.parametrize(("path", "expected"), VALUES.items(), ids=lambda text: text[:40] or "/")
def test_a_key_has_its_value(shared: MetadataServer, path: str, expected: str) -> None:
    response, text = ask(shared, V1 + path)
    assert (response.status, text) == (200, expected)
    assert response.headers["Metadata-Flavor"] == "Google"
    assert len(response.headers["ETag"]) == 16
    form = "application/json" if expected[:1] in ("[", "{", '"') else "application/text"
    assert response.headers["Content-Type"] == form


HEADERS = [
    (FLAVOR, 200),
    ({"Metadata-Flavor": "google"}, 403),
    ({}, 403),
    ({"X-Google-Metadata-Request": "True"}, 200),
    ({**FLAVOR, "X-Forwarded-For": "10.0.0.1"}, 403),
]


@pytest.mark.parametrize(("headers", "status"), HEADERS, ids=str)
def test_only_who_knows_whom_he_asks_is_answered(
    shared: MetadataServer, headers: dict[str, str], status: int
) -> None:
    response, text = ask(shared, V1 + "instance/name", headers)
    assert response.status == status
    assert response.headers["Metadata-Flavor"] == "Google"
    assert ("<!DOCTYPE html>" in text) == (status == 403)


def test_the_root_is_shown_to_everybody(shared: MetadataServer) -> None:
    response, text = ask(shared, "/", {})
    assert (response.status, text, response.headers["Metadata-Flavor"]) == (
        200,
        "computeMetadata/\n",
        "Google",
    )
    assert ask(shared, "/computeMetadata/")[1] == "v1/\n"
    assert ask(shared, "/computeMetadata/", {})[0].status == 403


@pytest.mark.parametrize(
    "path", ["instance/nothing", "instance/name/", "nothing/", "instance/name/x", "instance/disks/7/"]
)
def test_what_is_not_there_is_a_page_of_404(shared: MetadataServer, path: str) -> None:
    response, text = ask(shared, V1 + path)
    assert response.status == 404
    assert response.headers["Content-Type"] == "text/html; charset=UTF-8"
    assert response.headers["Metadata-Flavor"] == "Google"
    assert text.startswith("<!DOCTYPE html>")


def test_a_directory_without_its_slash_is_redirected_with_the_query(shared: MetadataServer) -> None:
    response, _ = ask(shared, V1 + "instance?recursive=true")
    assert (response.status, response.headers["Location"]) == (301, V1 + "instance/?recursive=true")


def test_everything_at_once_is_json_in_camel_case(shared: MetadataServer) -> None:
    _response, text = ask(shared, V1 + "?recursive=true&alt=json")
    found = json.loads(text)
    assert found["instance"]["machineType"].endswith("/ct6e-standard-4t")
    assert found["instance"]["networkInterfaces"][0]["accessConfigs"][0]["externalIp"] == ""
    assert found["instance"]["id"] == 4242424242424242424
    assert found["instance"]["virtualClock"] == {"driftToken": "0"}
    assert found["instance"]["attributes"]["enable-guest-attributes"] == "TRUE", "names are kept"
    assert found["project"] == {
        "attributes": {"ssh-keys": "me:ssh-ed25519 AAAA"},
        "numericProjectId": 123456789012,
        "projectId": "tpu-image-lab",
    }
    assert "token" not in found["instance"]["serviceAccounts"]["default"]
    assert "ya29" not in text


def test_a_token_and_an_identity_are_given_to_who_asks_for_them(shared: MetadataServer) -> None:
    account = V1 + "instance/service-accounts/default/"
    token = json.loads(ask(shared, account + "token")[1])
    assert token == {"access_token": "ya29.tpu-image-lab", "expires_in": 3599, "token_type": "Bearer"}
    assert ask(shared, account + "identity")[0].status == 400
    assert ask(shared, account + "identity?audience=https://example.com")[1].count(".") == 2


def test_a_head_request_has_no_body_and_the_connection_goes_on(shared: MetadataServer) -> None:
    connection = http.client.HTTPConnection(shared.host, timeout=20)
    connection.request("HEAD", V1 + "instance/name", headers=FLAVOR)
    head = connection.getresponse()
    assert (head.status, head.read(), head.headers["Content-Length"]) == (200, b"", "3")
    connection.request("GET", V1 + "instance/name", headers=FLAVOR)
    assert connection.getresponse().read() == b"one"
    connection.close()


def test_the_etag_follows_the_content(server: MetadataServer) -> None:
    path = V1 + "instance/attributes/greeting"
    one, again = ask(server, path)[0].headers["ETag"], ask(server, path)[0].headers["ETag"]
    server.state.set_attribute("greeting", "moin")
    assert one == again != ask(server, path)[0].headers["ETag"]


def in_background(server: MetadataServer, path: str) -> tuple[threading.Thread, list[str]]:
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(ask(server, path)[1]), daemon=True)
    thread.start()
    time.sleep(0.3)
    return thread, answers


def test_who_waits_for_a_change_gets_the_new_value_when_it_comes(server: MetadataServer) -> None:
    thread, answers = in_background(server, V1 + "instance/attributes/greeting?wait_for_change=true")
    server.state.set_attribute("other", "x")
    time.sleep(0.2)
    assert answers == []
    server.state.set_attribute("greeting", "moin")
    thread.join(10)
    assert answers == ["moin"]


def test_who_waits_below_a_directory_sees_every_change(server: MetadataServer) -> None:
    thread, answers = in_background(server, V1 + "?recursive=true&wait_for_change=true&timeout_sec=60")
    server.state.set_attribute("late", "news")
    thread.join(10)
    assert json.loads(answers[0])["instance"]["attributes"]["late"] == "news"


@pytest.mark.parametrize("known", ["NONE", "0", "0123456789abcdef"])
def test_who_knows_another_state_does_not_wait(shared: MetadataServer, known: str) -> None:
    path = f"instance/name?wait_for_change=true&last_etag={known}"
    assert ask(shared, V1 + path)[1] == "one"


def test_who_knows_the_state_waits_until_the_time_is_over(shared: MetadataServer) -> None:
    known = ask(shared, V1 + "instance/name")[0].headers["ETag"]
    started = time.monotonic()
    path = f"instance/name?wait_for_change=true&last_etag={known}&timeout_sec=1"
    assert ask(shared, V1 + path)[1] == "one"
    assert time.monotonic() - started >= 0.9


def test_nobody_waits_for_a_key_that_is_not_there(shared: MetadataServer) -> None:
    assert ask(shared, V1 + "instance/attributes/none?wait_for_change=true")[0].status == 404


def test_half_a_value_is_not_kept(server: MetadataServer) -> None:
    head = f"PUT {V1}instance/guest-attributes/a/b HTTP/1.1\r\nMetadata-Flavor: Google\r\nContent-Length: 9\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as connection:
        connection.sendall(head.encode() + b"half")
        connection.shutdown(socket.SHUT_WR)
        assert b" 400 " in connection.recv(4096)
    assert server.state.guest_attributes() == {}


def test_who_waits_is_let_go_when_the_server_stops() -> None:
    with serving(MACHINE) as server:
        connection = http.client.HTTPConnection(server.host, timeout=20)
        connection.request("GET", V1 + "instance/name?wait_for_change=true", headers=FLAVOR)
        time.sleep(0.2)
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        connection.getresponse()
    connection.close()


def test_guest_attributes_are_written_read_and_taken_away(server: MetadataServer) -> None:
    path = V1 + "instance/guest-attributes/hostkeys/ssh-rsa"
    assert ask(server, path)[0].status == 404
    assert ask(server, path, method="PUT", body="AAAA é")[0].status == 200
    assert ask(server, path)[1] == "AAAA é"
    assert server.state.guest_attributes() == {"hostkeys/ssh-rsa": "AAAA é"}
    assert ask(server, V1 + "instance/guest-attributes/hostkeys/")[1] == "ssh-rsa\n"
    assert ask(server, path, method="DELETE")[0].status == 200
    assert ask(server, path, method="DELETE")[0].status == 404


REFUSED_WRITES = {
    "of another key": ("PUT", "instance/attributes/greeting", "x", 405),
    "without the header": ("PUT", "instance/guest-attributes/a/b", "x", 403),
    "without a key": ("PUT", "instance/guest-attributes/a", "x", 400),
    "too deep": ("PUT", "instance/guest-attributes/a/b/c", "x", 400),
    "of a name too long": ("PUT", "instance/guest-attributes/a/" + "b" * 129, "x", 400),
    "of a value too long": ("PUT", "instance/guest-attributes/a/b", "x" * (256 * 1024 + 1), 413),
    "away, of what is not there": ("DELETE", "instance/guest-attributes/a/b", None, 404),
    "away, of another key": ("DELETE", "instance/name", None, 405),
}


@pytest.mark.parametrize(("method", "path", "body", "status"), REFUSED_WRITES.values(), ids=REFUSED_WRITES)
def test_a_guest_writes_guest_attributes_alone(
    shared: MetadataServer, method: str, path: str, body: str | None, status: int
) -> None:
    headers = {} if status == 403 else FLAVOR
    assert ask(shared, V1 + path, headers, method=method, body=body)[0].status == status
    assert shared.state.guest_attributes() == {}


def test_guest_attributes_are_off_where_they_are_not_enabled() -> None:
    with serving(Machine()) as server:
        path = V1 + "instance/guest-attributes/a/b"
        assert ask(server, path, method="PUT", body="x")[0].status == 403
        assert ask(server, path)[0].status == 403


def test_a_guest_cannot_fill_the_memory_with_attributes(server: MetadataServer) -> None:
    assert all(server.state.set_guest_attribute("a", str(number), "x") for number in range(1000))
    assert ask(server, V1 + "instance/guest-attributes/b/c", method="PUT", body="x")[0].status == 503
    assert ask(server, V1 + "instance/guest-attributes/a/1", method="PUT", body="y")[0].status == 200


def test_nor_with_long_ones(server: MetadataServer) -> None:
    path, long = V1 + "instance/guest-attributes/a/", "x" * (200 * 1024)
    said = [ask(server, path + key, method="PUT", body=long)[0].status for key in ("1", "2", "3", "1")]
    assert said == [200, 200, 503, 200]


def test_nor_with_headers_that_are_never_read(server: MetadataServer) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        with contextlib.suppress(ConnectionError):  # it is closed while we send
            for number in range(90):
                connection.sendall(b"h%d: %s\r\n" % (number, b"x" * 65000))
            connection.sendall(b"\r\n")
            assert not connection.recv(1)


def test_each_request_of_a_connection_may_have_long_headers(server: MetadataServer) -> None:
    connection = http.client.HTTPConnection(server.host, timeout=20)
    for _ in range(5):
        connection.request("GET", V1 + "instance/name", headers={**FLAVOR, "X": "x" * 60_000})
        assert connection.getresponse().read() == b"one"
    connection.close()


def test_every_request_is_in_the_log(server: MetadataServer) -> None:
    server.power_on()
    ask(server, V1 + "instance/name")
    ask(server, V1 + "instance/none", {})
    assert [(one.method, one.path, one.status, one.fault) for one in server.requests] == [
        ("GET", V1 + "instance/name", 200, ""),
        ("GET", V1 + "instance/none", 403, ""),
    ]
    assert server.requests[0].seconds <= server.requests[1].seconds


BYTES = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20 + b"\r\n\r\n",
    "another method": b"BREW / HTTP/1.1\r\n\r\n",
    "a bad IPv6 host": b"GET http://[::1/ HTTP/1.1\r\nMetadata-Flavor: Google\r\n\r\n",
    "a negative length": b"PUT / HTTP/1.1\r\nMetadata-Flavor: Google\r\nContent-Length: -1\r\n\r\n",
    "no length": b"PUT / HTTP/1.1\r\nMetadata-Flavor: Google\r\n\r\n",
    "a line without end": b"GET /" + b"x" * 70000,
    "headers without end": b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 200,
    "many parameters": b"GET /?" + b"a&" * 5000 + b" HTTP/1.1\r\nMetadata-Flavor: Google\r\n\r\n",
}


@pytest.mark.parametrize("data", BYTES.values(), ids=BYTES)
def test_what_is_no_request_ends_its_connection_alone(shared: MetadataServer, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", shared.server_port), timeout=20) as connection:
        connection.sendall(data)
        assert b" 200 " not in connection.recv(65536)
    assert ask(shared, V1 + "instance/name")[1] == "one"


def test_more_connections_than_the_limit_are_turned_away_and_the_rest_served(server: MetadataServer) -> None:
    held = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(CONNECTIONS_LIMIT + 5)]
    held[-1].settimeout(20)
    assert held[-1].recv(1) == b""
    for one in held:
        one.close()
    for _ in range(100):
        try:
            assert ask(server, V1 + "instance/name")[1] == "one"
            return
        except (OSError, http.client.HTTPException):
            time.sleep(0.05)  # the threads of the others are still ending
    raise AssertionError("nobody is served any more")


targets = st.text(st.sampled_from("/?&=#%;:.[]@+v1 alt\xe9"), max_size=40).map("/{}".format) | st.builds(
    lambda path, query: f"{V1}{path}?{query}",
    st.sampled_from(
        ["", "instance/", "instance/name", "instance/attributes/%2e%2e", "project//", "instance/tags"]
    ),
    st.lists(
        st.sampled_from(
            [
                "alt=json",
                "alt=x",
                "recursive=true",
                "recursive",
                "last_etag=1",
                "timeout_sec=\xb2",
                "%",
                "a=%ff",
            ]
        )
    ).map("&".join),
)


@settings(max_examples=80)
@given(targets)
def test_any_target_has_an_answer(shared: MetadataServer, target: str) -> None:
    with socket.create_connection(("127.0.0.1", shared.server_port), timeout=20) as connection:
        connection.sendall(f"GET {target} HTTP/1.1\r\nMetadata-Flavor: Google\r\n\r\n".encode("latin-1"))
        assert connection.recv(12)[9:] in (b"200", b"301", b"400", b"404")


values = st.text(max_size=30)
trees = st.recursive(
    values | st.integers() | st.builds(nodes.Lines, st.lists(values, max_size=3).map(tuple)),
    lambda below: (
        st.lists(below, max_size=3)
        | st.dictionaries(values, below, max_size=3)
        | st.dictionaries(values, below, max_size=3).map(nodes.Named)
    ),
    max_leaves=10,
)


@settings(max_examples=60)
@given(trees)
def test_any_tree_can_be_written_in_every_form(tree: nodes.Node) -> None:
    json.loads(nodes.as_json(tree))
    assert len(nodes.etag(tree)) == 16
    assert nodes.as_recursive_text(tree).count("\n") >= 0
    assert all(nodes.find(tree, [name]) == entry for name, entry in nodes.entries(tree).items())


@pytest.mark.parametrize("machine", MACHINE_TYPES, ids=lambda machine: machine.name)
@pytest.mark.parametrize("origin", Origin)
def test_tpu_env_is_yaml_of_the_machine_in_both_shapes(machine: MachineType, origin: Origin) -> None:
    of_machine = chips.of_machine(machine)
    text = tpu_attributes.tpu_environment(of_machine, origin=origin, node="one", zone="us-east5-a")
    values = yaml.safe_load(text)
    bounds = [int(number) for number in str(values["CHIPS_PER_HOST_BOUNDS"]).split(",")]
    assert bounds[0] * bounds[1] * bounds[2] == machine.chips
    assert values["TYPE"] == machine.generation.upper()
    assert values["TOPOLOGY"] == "x".join(
        str(number) for number in bounds[: str(values["TOPOLOGY"]).count("x") + 1]
    )
    assert ("VBARCONTROL_AGENT_DOCKER_URL: ''\n" in text) == (origin is Origin.TPU_API)
    quoted = [line for line in text.splitlines() if line.endswith("'")]
    assert len(quoted) == (len(values) if origin is Origin.TPU_API else 0)
