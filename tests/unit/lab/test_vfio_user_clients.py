"""Clients of vfio-user that break the protocol, go away, flood or crowd: none ends the server or keeps others out."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpu_image.lab.vfio_user.process import Emulation, emulating
from vfio_user_client import (
    DMA_MAP,
    GET_INFO,
    HEADER,
    PROPOSAL,
    READ,
    SET_IRQS,
    V6E,
    VERSION,
    WRITE,
    Client,
    connected,
    dma_map,
)


def open_files(tpus: Emulation) -> int:
    return len(os.listdir(f"/proc/{tpus.pid}/fd"))


def settled_files(tpus: Emulation) -> int:
    """Open descriptors of the server once it has done all that was asked of it."""
    with connected(tpus, "v6e"), connected(tpus, "tpu7x-0"), connected(tpus, "tpu7x-1"):
        return open_files(tpus)


BROKEN = {
    "size below the header": HEADER.pack(1, GET_INFO, 15, 0, 0),
    "size of nothing": HEADER.pack(1, GET_INFO, 0, 0, 0),
    "size beyond all": HEADER.pack(1, WRITE, 2**32 - 1, 0, 0),
    "size just beyond the limit": HEADER.pack(1, WRITE, (1 << 20) + 4097, 0, 0),
    "a reply to nothing": HEADER.pack(1, GET_INFO, 16, 1, 0),
    "no type": HEADER.pack(1, GET_INFO, 16, 7, 0),
    "text": b"GET / HTTP/1.1\r\nHost: tpu\r\n\r\n",
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_what_is_no_message_ends_its_connection_alone(tpus: Emulation, client: Client, data: bytes) -> None:
    with connected(tpus, "tpu7x-0") as other:
        client.socket.sendall(data)
        assert client.hung_up()
        assert other.ask(GET_INFO, bytes(16)).error == 0
    with connected(tpus) as again:
        assert again.ask(GET_INFO, bytes(16)).error == 0


GREETINGS = {
    "another major version": struct.pack("=HH", 1, 0) + PROPOSAL,
    "no version": b"\0",
    "no JSON": struct.pack("=HH", 0, 1) + b"{capabilities\0",
    "no end": struct.pack("=HH", 0, 1) + b"{}",
    "no object": struct.pack("=HH", 0, 1) + b"[]\0",
    "no UTF-8": struct.pack("=HH", 0, 1) + b'{"a": "\xff"}\0',
    "a deep one": struct.pack("=HH", 0, 1) + b"[" * 4000 + b"\0",
    "a long one": struct.pack("=HH", 0, 1) + b'{"a": "' + b"x" * 5000 + b'"}\0',
    "a long number": struct.pack("=HH", 0, 1) + b'{"a": ' + b"9" * 4080 + b"}\0",
}


@pytest.mark.parametrize("body", GREETINGS.values(), ids=GREETINGS)
def test_a_wrong_greeting_is_refused_and_a_right_one_still_taken(tmp_path: Path, body: bytes) -> None:
    with emulating(tmp_path, {"a": V6E}) as own, Client(own.socket("a"), greet=False) as client:
        reply = client.ask(VERSION, body)
        if b"9999" not in body:  # a number is a number, however long
            assert reply.error == errno.EINVAL
            assert client.ask(VERSION, struct.pack("=HH", 0, 1)).error == 0
        assert client.ask(GET_INFO, bytes(16)).error == 0


def test_before_the_version_nothing_is_answered(tmp_path: Path) -> None:
    with emulating(tmp_path, {"a": V6E}) as own, Client(own.socket("a"), greet=False) as client:
        client.send(GET_INFO, bytes(16))
        assert client.hung_up()
        assert own.statistics()["a"].dropped == 1


def test_a_message_may_come_byte_by_byte(client: Client) -> None:
    message = HEADER.pack(7, GET_INFO, 32, 0, 0) + bytes(16)
    for byte in message:
        client.socket.sendall(bytes([byte]))
    assert client.receive().identifier == 7


def test_many_messages_may_come_at_once_and_are_answered_in_order(client: Client) -> None:
    client.socket.sendall(b"".join(HEADER.pack(n, GET_INFO, 32, 0, 0) + bytes(16) for n in range(500)))
    assert [client.receive().identifier for _ in range(500)] == list(range(500))


def test_no_reply_is_sent_where_none_is_wanted(client: Client) -> None:
    client.send(WRITE, struct.pack("=QII", 0, 0, 1) + b"z", flags=0x10)
    client.send(WRITE, struct.pack("=QII", 0, 77, 1) + b"z", flags=0x10)
    assert client.read(0, 0, 1) == b"z"


def test_descriptors_are_closed_however_many_come(tpus: Emulation, client: Client) -> None:
    before, counted = open_files(tpus), tpus.statistics()["v6e"].descriptors
    ends = socket.socketpair()
    ends[1].settimeout(20)
    irqs = struct.pack("=IIIII", 20, 36, 2, 0, 8)
    assert client.ask(SET_IRQS, irqs, fds=(ends[0].fileno(),) * 8).error == 0
    assert client.ask(DMA_MAP, dma_map(0, 4096), fds=(ends[0].fileno(),)).error == 0
    assert client.ask(GET_INFO, bytes(16), fds=(ends[0].fileno(),) * 253).error == 0
    ends[0].close()
    assert ends[1].recv(1) == b"", "every copy is closed"
    assert open_files(tpus) == before
    assert tpus.statistics()["v6e"].descriptors == counted + 8 + 1 + 253


@pytest.mark.parametrize("cut", [1, 15, 16, 17, 31])
def test_a_client_may_go_in_the_middle_of_a_message(tpus: Emulation, cut: int) -> None:
    before = settled_files(tpus)
    client = connected(tpus)
    client.socket.sendall((HEADER.pack(1, GET_INFO, 32, 0, 0) + bytes(16))[:cut])
    client.socket.close()
    assert settled_files(tpus) == before


def test_a_client_may_go_without_reading_its_replies(tpus: Emulation) -> None:
    before = settled_files(tpus)
    client = connected(tpus)
    for _ in range(8):
        client.send(READ, struct.pack("=QII", 0, 0, 1 << 20))
    client.socket.close()
    assert settled_files(tpus) == before


def memory(tpus: Emulation) -> int:
    """Resident bytes of the server."""
    return int(Path(f"/proc/{tpus.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_client_that_floods_and_never_reads_costs_bounded_memory(tpus: Emulation) -> None:
    request = HEADER.pack(1, READ, 32, 0, 0) + struct.pack("=QII", 0, 0, 1 << 20)
    with connected(tpus) as flooding, connected(tpus, "tpu7x-0") as other:
        before = memory(tpus)
        flooding.socket.settimeout(0.3)
        with pytest.raises(TimeoutError):
            flooding.socket.sendall(request * (1 << 20))
        assert other.ask(GET_INFO, bytes(16)).error == 0
        assert memory(tpus) - before < 32 << 20


def test_a_second_client_of_a_function_is_turned_away(tpus: Emulation, client: Client) -> None:
    with Client(tpus.socket("v6e"), greet=False) as second:
        assert second.hung_up()
    assert client.ask(GET_INFO, bytes(16)).error == 0


def test_a_silent_connection_keeps_nobody_out(tpus: Emulation, client: Client) -> None:
    client.socket.close()
    silent = [socket.socket(socket.AF_UNIX) for _ in range(30)]
    for one in silent:
        one.connect(str(tpus.socket("v6e")))
    with connected(tpus) as real:
        assert real.ask(GET_INFO, bytes(16)).error == 0
    for one in silent:
        one.close()


def test_clients_work_at_the_same_time(tpus: Emulation) -> None:
    failures: list[str] = []

    def work(name: str, mark: bytes) -> None:
        with connected(tpus, name) as client:
            for step in range(200):
                client.write(0, step * 4, mark)
                if client.read(0, step * 4, 4) != mark:
                    failures.append(f"{name} at {step}")

    names = {"v6e": b"AAAA", "tpu7x-0": b"BBBB", "tpu7x-1": b"CCCC"}
    threads = [threading.Thread(target=work, args=item) for item in names.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_the_state_of_a_device_outlasts_its_client(tpus: Emulation, client: Client) -> None:
    client.write(0, 0, b"kept")
    client.socket.close()
    with connected(tpus) as again:
        assert again.read(0, 0, 4) == b"kept"


frames = st.builds(
    lambda command, size, flags, body: HEADER.pack(9, command, size % 2**32, flags, 0) + body,
    st.integers(0, 20) | st.integers(0, 65535),
    st.integers(0, 80) | st.integers(0, 2**32 - 1),
    st.sampled_from([0, 0, 0x10]) | st.integers(0, 2**32 - 1),
    st.binary(max_size=80),
)
whole_frames = st.builds(
    lambda command, body: HEADER.pack(9, command, 16 + len(body), 0, 0) + body,
    st.integers(0, 18),
    st.binary(max_size=80) | st.sampled_from([bytes(n) for n in (8, 16, 20, 24, 32)]),
)


@settings(max_examples=60)
@given(st.lists(frames | whole_frames | st.binary(max_size=60), max_size=8), st.booleans())
def test_no_bytes_end_the_server(tpus: Emulation, parts: list[bytes], greet: bool) -> None:
    with connected(tpus, "tpu7x-1") as client:
        if not greet:
            client.socket.close()
            client = Client(tpus.socket("tpu7x-1"), greet=False)
        try:
            for part in parts:
                client.socket.sendall(part)
        except ConnectionError:
            pass
        finally:
            client.socket.close()
    with connected(tpus, "tpu7x-1") as next_client:
        assert next_client.ask(GET_INFO, bytes(16)).error == 0
