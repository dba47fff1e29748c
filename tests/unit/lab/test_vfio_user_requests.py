"""Every request of vfio-user over real sockets, right and wrong."""

from __future__ import annotations

import errno
import json
import random
import struct
from pathlib import Path

import pytest

from tpu_image.lab.vfio_user.process import Emulation, emulating
from vfio_user_client import (
    CONFIG,
    DMA_MAP,
    DMA_UNMAP,
    GET_INFO,
    GET_IRQ_INFO,
    GET_REGION_INFO,
    READ,
    RESET,
    SET_IRQS,
    V6E,
    VERSION,
    WRITE,
    Client,
    connected,
    dma_map,
    dma_unmap,
)


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
