"""The vfio-user server over real sockets: every request, every way to be wrong, and nothing that ends it."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpu_image.lab.vfio_user.config_space import Identity
from tpu_image.lab.vfio_user.process import Emulation, EmulationError, emulating
from vfio_user_client import HEADER, PROPOSAL, Client

V6E = Identity(0x1AE0, 0x006F, 0x1AE0, 0x00D1)
TPU7X = Identity(0x1AE0, 0x0076, 0x1AE0, 0x00F2)
CONFIG = 7
(VERSION, DMA_MAP, DMA_UNMAP, GET_INFO, GET_REGION_INFO, _, GET_IRQ_INFO, SET_IRQS, READ, WRITE) = range(
    1, 11
)
RESET = 13


@pytest.fixture(scope="module")
def tpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulation]:
    """One server for the whole module: what one test does to it, the others must not notice."""
    names = {"v6e": V6E, "tpu7x-0": TPU7X, "tpu7x-1": TPU7X}
    with emulating(tmp_path_factory.mktemp("tpus"), names) as emulation:
        yield emulation


@pytest.fixture
def client(tpus: Emulation) -> Iterator[Client]:
    with connected(tpus) as client:
        client.ask(RESET)
        yield client


def connected(tpus: Emulation, name: str = "v6e") -> Client:
    """A client; the one before may not have been seen off yet."""
    for _ in range(200):
        try:
            return Client(tpus.socket(name))
        except OSError:
            time.sleep(0.05)
    raise AssertionError("the function does not let a new client in")


def open_files(tpus: Emulation) -> int:
    return len(os.listdir(f"/proc/{tpus.pid}/fd"))


def settled_files(tpus: Emulation) -> int:
    """Open descriptors of the server once it has done all that was asked of it."""
    with connected(tpus, "v6e"), connected(tpus, "tpu7x-0"), connected(tpus, "tpu7x-1"):
        return open_files(tpus)


def test_the_version_is_agreed_on(client: Client) -> None:
    assert struct.unpack_from("=HH", client.hello.body) == (0, 1)
    capabilities = json.loads(client.hello.body[4:].rstrip(b"\0"))["capabilities"]
    assert capabilities["max_data_xfer_size"] == 1 << 20


def test_a_lower_minor_version_is_kept(tmp_path: Path) -> None:
    with emulating(tmp_path, {"a": V6E}) as own, Client(own.socket("a"), greet=False) as old:
        assert struct.unpack_from("=HH", old.ask(VERSION, struct.pack("=HH", 0, 0)).body) == (0, 0)


def test_it_is_a_pci_device_that_can_be_reset(client: Client) -> None:
    assert struct.unpack("=IIII", client.ask(GET_INFO, struct.pack("=IIII", 16, 0, 0, 0)).body) == (
        16,
        3,
        9,
        5,
    )


REGION_SIZES = {0: 1 << 20, 1: 0, 2: 1 << 16, 3: 0, 4: 1 << 20, 5: 0, 6: 0, 7: 4096, 8: 0}


@pytest.mark.parametrize(("index", "size"), REGION_SIZES.items())
def test_each_region_has_its_size(client: Client, index: int, size: int) -> None:
    reply = client.ask(GET_REGION_INFO, struct.pack("=IIIIQQ", 32, 0, index, 0, 0, 0))
    assert struct.unpack("=IIIIQQ", reply.body) == (32, 3 if size else 0, index, 0, size, 0)


@pytest.mark.parametrize(("index", "flags", "count"), [(0, 0, 0), (1, 0, 0), (2, 9, 8), (3, 1, 1), (4, 1, 1)])
def test_each_interrupt_has_its_count(client: Client, index: int, flags: int, count: int) -> None:
    reply = client.ask(GET_IRQ_INFO, struct.pack("=IIII", 16, 0, index, 0))
    assert struct.unpack("=IIII", reply.body) == (16, flags, index, count)


def test_the_ids_are_those_of_the_tpu(tpus: Emulation, client: Client) -> None:
    assert struct.unpack("<HH", client.read(CONFIG, 0, 4)) == (0x1AE0, 0x006F)
    assert struct.unpack("<HH", client.read(CONFIG, 0x2C, 4)) == (0x1AE0, 0x00D1)
    assert client.read(CONFIG, 9, 3) == b"\x00\x00\x12"
    assert client.read(CONFIG, 0x3D, 1) == b"\0", "no interrupt pin"
    with connected(tpus, "tpu7x-1") as other:
        assert struct.unpack("<HH", other.read(CONFIG, 0, 4)) == (0x1AE0, 0x0076)


def test_the_capabilities_are_a_list_that_ends(client: Client) -> None:
    space = client.read(CONFIG, 0, 4096)
    found, place = [], space[0x34]
    while place:
        found.append(space[place])
        place = space[place + 1]
        assert len(found) < 10
    assert found == [0x01, 0x11, 0x10], "power management, MSI-X, PCI Express"
    assert struct.unpack_from("<I", space, 0x100)[0] == 0x0001000D, "ACS, and nothing after it"


@pytest.mark.parametrize(
    ("register", "size", "flags"), [(0x10, 1 << 20, 0xC), (0x18, 1 << 16, 0x4), (0x20, 1 << 20, 0xC)]
)
def test_a_bar_tells_its_size(client: Client, register: int, size: int, flags: int) -> None:
    client.write(CONFIG, register, b"\xff" * 8)
    (value,) = struct.unpack("<Q", client.read(CONFIG, register, 8))
    assert value & 0xF == flags, "64 bits, and prefetchable or not"
    assert (1 << 64) - (value & ~0xF) == size


def test_ids_cannot_be_written(client: Client) -> None:
    before = client.read(CONFIG, 0, 4)
    client.write(CONFIG, 0, b"\0\0\0\0")
    assert client.read(CONFIG, 0, 4) == before


def test_a_bar_is_memory_that_reset_clears(client: Client) -> None:
    client.write(0, 0xFFF00, b"\xa5" * 256)
    assert client.read(0, 0xFFF00, 256) == b"\xa5" * 256
    assert client.ask(RESET).body == b""
    assert client.read(0, 0xFFF00, 256) == bytes(256)


def test_function_level_reset_clears_too(tpus: Emulation, client: Client) -> None:
    before = tpus.statistics()["v6e"].function_level_resets
    client.write(4, 0, b"x")
    client.write(CONFIG, 0x78, struct.pack("<H", 0x8000))
    assert client.read(4, 0, 1) == b"\0"
    assert client.read(CONFIG, 0x78, 2) == struct.pack("<H", 0x2810)
    assert tpus.statistics()["v6e"].function_level_resets == before + 1


def test_functions_share_nothing(tpus: Emulation, client: Client) -> None:
    with connected(tpus, "tpu7x-0") as other:
        client.write(0, 0, b"mine")
        assert other.read(0, 0, 4) == bytes(4)


def test_the_largest_transfer_goes_through(client: Client) -> None:
    data = random.Random(1).randbytes(1 << 20)
    assert client.write(0, 0, data).error == 0
    assert client.read(0, 0, 1 << 20) == data


def dma_map(address: int, size: int) -> bytes:
    return struct.pack("=IIQQQ", 32, 3, 0, address, size)


def dma_unmap(address: int, size: int, flags: int = 0) -> bytes:
    return struct.pack("=IIQQ", 24, flags, address, size)


def test_memory_is_mapped_and_unmapped(tpus: Emulation, client: Client) -> None:
    assert client.ask(DMA_MAP, dma_map(0x1000, 0x2000)).body == b""
    assert tpus.statistics()["v6e"].dma_mapped == 0x2000
    assert client.ask(DMA_UNMAP, dma_unmap(0x1000, 0x2000)).body == dma_unmap(0x1000, 0x2000)
    assert tpus.statistics()["v6e"].dma_mapped == 0


@pytest.mark.parametrize("address", [0x1000, 0x0, 0x2FFF, 0x2000])
def test_a_mapping_over_another_is_refused(client: Client, address: int) -> None:
    client.ask(DMA_MAP, dma_map(0x1000, 0x2000))
    assert client.ask(DMA_MAP, dma_map(address, 0x1001)).error == errno.EEXIST


def test_neighbouring_mappings_are_taken_and_unmapped_together(tpus: Emulation, client: Client) -> None:
    for address in (0x3000, 0x1000, 0x2000):
        assert client.ask(DMA_MAP, dma_map(address, 0x1000)).error == 0
    client.ask(DMA_UNMAP, dma_unmap(0x1000, 0x2000))
    assert tpus.statistics()["v6e"].dma_mapped == 0x1000
    client.ask(DMA_UNMAP, dma_unmap(0, 0, flags=2))
    assert tpus.statistics()["v6e"].dma_mapped == 0


def test_mappings_end_with_their_client(tpus: Emulation, client: Client) -> None:
    client.ask(DMA_MAP, dma_map(0, 0x1000))
    client.socket.close()
    with connected(tpus):
        assert tpus.statistics()["v6e"].dma_mapped == 0


WRONG = {
    "get info, short": (GET_INFO, bytes(15), errno.EINVAL),
    "get info, long": (GET_INFO, bytes(17), errno.EINVAL),
    "region info, empty": (GET_REGION_INFO, b"", errno.EINVAL),
    "region info, no such region": (GET_REGION_INFO, struct.pack("=IIIIQQ", 32, 0, 9, 0, 0, 0), errno.EINVAL),
    "region info, huge index": (
        GET_REGION_INFO,
        struct.pack("=IIIIQQ", 32, 0, 2**32 - 1, 0, 0, 0),
        errno.EINVAL,
    ),
    "irq info, short": (GET_IRQ_INFO, bytes(12), errno.EINVAL),
    "irq info, no such index": (GET_IRQ_INFO, struct.pack("=IIII", 16, 0, 5, 0), errno.EINVAL),
    "set irqs, short": (SET_IRQS, bytes(19), errno.EINVAL),
    "set irqs, no such index": (SET_IRQS, struct.pack("=IIIII", 20, 33, 5, 0, 1), errno.EINVAL),
    "set irqs, too many": (SET_IRQS, struct.pack("=IIIII", 20, 33, 2, 7, 2), errno.EINVAL),
    "set irqs, sum wraps": (SET_IRQS, struct.pack("=IIIII", 20, 33, 2, 2**32 - 1, 2), errno.EINVAL),
    "read, short": (READ, bytes(15), errno.EINVAL),
    "read, with data": (READ, struct.pack("=QII", 0, 0, 4) + b"data", errno.EINVAL),
    "read of nothing": (READ, struct.pack("=QII", 0, 0, 0), errno.EINVAL),
    "read past the end": (READ, struct.pack("=QII", (1 << 20) - 3, 0, 4), errno.EINVAL),
    "read far past the end": (READ, struct.pack("=QII", 2**64 - 1, 0, 4), errno.EINVAL),
    "read past the configuration space": (READ, struct.pack("=QII", 4095, CONFIG, 2), errno.EINVAL),
    "read of more than a transfer": (READ, struct.pack("=QII", 0, 0, (1 << 20) + 1), errno.EINVAL),
    "read of 4 GiB": (READ, struct.pack("=QII", 0, 0, 2**32 - 1), errno.EINVAL),
    "read of an absent BAR": (READ, struct.pack("=QII", 0, 1, 4), errno.EINVAL),
    "read of no region": (READ, struct.pack("=QII", 0, 99, 4), errno.EINVAL),
    "write, short": (WRITE, bytes(8), errno.EINVAL),
    "write of less than announced": (WRITE, struct.pack("=QII", 0, 0, 4) + b"abc", errno.EINVAL),
    "write of more than announced": (WRITE, struct.pack("=QII", 0, 0, 4) + b"abcde", errno.EINVAL),
    "write past the end": (WRITE, struct.pack("=QII", 1 << 20, 0, 1) + b"a", errno.EINVAL),
    "write past the configuration space": (WRITE, struct.pack("=QII", 4096, CONFIG, 1) + b"a", errno.EINVAL),
    "write to an absent BAR": (WRITE, struct.pack("=QII", 0, 5, 1) + b"a", errno.EINVAL),
    "map, short": (DMA_MAP, bytes(31), errno.EINVAL),
    "map of nothing": (DMA_MAP, dma_map(0x1000, 0), errno.EINVAL),
    "map beyond the address space": (DMA_MAP, dma_map(2**64 - 1, 2), errno.EINVAL),
    "unmap, long": (DMA_UNMAP, bytes(25), errno.EINVAL),
    "unmap of nothing": (DMA_UNMAP, dma_unmap(0x1000, 0), errno.EINVAL),
    "reset with a body": (RESET, b"\0", errno.EINVAL),
    "a second version": (VERSION, struct.pack("=HH", 0, 1), errno.EINVAL),
    "region io fds": (6, bytes(16), errno.ENOTSUP),
    "dma read, which is the server's": (11, bytes(16), errno.ENOTSUP),
    "write multi, never agreed on": (15, bytes(8), errno.ENOTSUP),
    "feature": (16, bytes(8), errno.ENOTSUP),
    "no command": (0, b"", errno.ENOTSUP),
    "an unknown command": (65535, b"x" * 100, errno.ENOTSUP),
}


@pytest.mark.parametrize(("command", "body", "error"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_in_a_message_is_answered_with_an_error(
    client: Client, command: int, body: bytes, error: int
) -> None:
    reply = client.ask(command, body)
    assert (reply.flags, reply.error, reply.body) == (0x21, error, b"")
    assert client.ask(GET_INFO, bytes(16)).error == 0, "the connection goes on"


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


def test_the_server_leaves_no_socket_behind(tmp_path: Path) -> None:
    with emulating(tmp_path, {"a": V6E, "b": V6E}) as own:
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a.sock", "b.sock"]
        assert own.socket("a").stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []


def test_the_socket_of_a_killed_server_is_replaced(tmp_path: Path) -> None:
    with emulating(tmp_path, {"a": V6E}) as own:
        os.kill(own.pid, signal.SIGKILL)
        with pytest.raises(EmulationError, match="server of the emulated TPUs ended with status -9"):
            own.next_line()
    assert [path.name for path in tmp_path.iterdir()] == ["a.sock"]
    with emulating(tmp_path, {"a": V6E}) as again, Client(again.socket("a")) as client:
        assert client.ask(GET_INFO, bytes(16)).error == 0


PARENT = """
import sys, time
from pathlib import Path
from tpu_image.lab.vfio_user.config_space import Identity
from tpu_image.lab.vfio_user.process import emulating
with emulating(Path(sys.argv[1]), {"a": Identity(0x1AE0, 0x6F, 0x1AE0, 0xD1)}) as own:
    print(own.pid, flush=True)
    time.sleep(60)
"""


def test_the_server_ends_with_its_killed_parent_and_cleans_up(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert parent.stdout is not None
    server = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 20
    while (Path("/proc") / str(server) / "cmdline").exists() and time.monotonic() < deadline:
        if (Path("/proc") / str(server) / "stat").read_text().split(") ")[1][0] == "Z":
            break  # ended; nobody has collected it yet
        time.sleep(0.02)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_said_in_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        pytest.raises(EmulationError, match="ended with status 73"),
        emulating(tmp_path / "none", {"a": V6E}),
    ):
        pass
    assert capfd.readouterr().err == f"{tmp_path / 'none'}: No such file or directory\n"


def test_a_path_too_long_for_a_socket_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmulationError, match="set TMPDIR"), emulating(tmp_path / ("x" * 100), {"a": V6E}):
        pass
