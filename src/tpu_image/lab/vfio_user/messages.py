"""The messages of vfio-user as values: their layouts on the wire, and nothing about what they do.

Source: ``docs/interop/vfio-user.rst`` of QEMU, section "Protocol Specification"; structures and constants named there
after ``<linux/vfio.h>``. All integers are in the host's byte order, without padding.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple


class Command(enum.IntEnum):
    """The requests of a client. Those from server to client (11 and 12, DMA) are never made: no TPU computes here."""

    VERSION = 1
    DMA_MAP = 2
    DMA_UNMAP = 3
    GET_INFO = 4
    GET_REGION_INFO = 5
    GET_REGION_IO_FDS = 6
    GET_IRQ_INFO = 7
    SET_IRQS = 8
    REGION_READ = 9
    REGION_WRITE = 10
    RESET = 13
    REGION_WRITE_MULTI = 15
    FEATURE = 16
    MIGRATION_READ = 17
    MIGRATION_WRITE = 18


HEADER_SIZE = 16
TYPE_MASK = 0xF
TYPE_COMMAND = 0
TYPE_REPLY = 1
NO_REPLY = 0x10
ERROR = 0x20

MAX_TRANSFER = 1024 * 1024
"""Bytes that one read or write may carry (``max_data_xfer_size``, the protocol's default)."""

MAX_MESSAGE = MAX_TRANSFER + 4096
"""Bytes of the longest message that is taken, header included."""

MAX_FDS = 8
"""Descriptors that one message may carry (``max_msg_fds``). None is ever used: no interrupt is raised, no DMA made."""

CONFIG_REGION = 7
"""``VFIO_PCI_CONFIG_REGION_INDEX``; the regions 0 to 5 are the BARs, 6 the ROM, 8 VGA."""

REGIONS = 9
INTERRUPTS = 5
MSIX = 2
"""``VFIO_PCI_MSIX_IRQ_INDEX``; 0 is INTx, 1 MSI, 3 errors, 4 requests."""


class Header(NamedTuple):
    """What every message begins with; ``size`` counts the header."""

    identifier: int
    command: int
    size: int
    flags: int = TYPE_COMMAND
    error: int = 0


class Version(NamedTuple):
    """The fixed part of a VERSION message; JSON with a final NUL may follow."""

    major: int
    minor: int


class DmaMap(NamedTuple):
    """Memory of the guest that the device may reach; sizes and addresses in bytes."""

    argsz: int
    flags: int
    offset: int
    address: int
    size: int


class DmaUnmap(NamedTuple):
    """Memory of the guest that the device may no longer reach."""

    argsz: int
    flags: int
    address: int
    size: int


class DeviceInfo(NamedTuple):
    """Request and reply of GET_INFO."""

    argsz: int
    flags: int
    regions: int
    interrupts: int


class RegionInfo(NamedTuple):
    """Request and reply of GET_REGION_INFO."""

    argsz: int
    flags: int
    region: int
    capabilities: int
    size: int
    offset: int


class IrqInfo(NamedTuple):
    """Request and reply of GET_IRQ_INFO."""

    argsz: int
    flags: int
    interrupt: int
    vectors: int


class IrqSet(NamedTuple):
    """The fixed part of SET_IRQS."""

    argsz: int
    flags: int
    interrupt: int
    first: int
    vectors: int


class RegionAccess(NamedTuple):
    """The fixed part of REGION_READ and REGION_WRITE, requests and replies; data may follow."""

    offset: int
    region: int
    length: int


class Nothing(NamedTuple):
    """A message that is its header."""


_LAYOUTS: dict[type[NamedTuple], struct.Struct] = {
    Header: struct.Struct("=HHIII"),
    Version: struct.Struct("=HH"),
    DmaMap: struct.Struct("=IIQQQ"),
    DmaUnmap: struct.Struct("=IIQQ"),
    DeviceInfo: struct.Struct("=IIII"),
    RegionInfo: struct.Struct("=IIIIQQ"),
    IrqInfo: struct.Struct("=IIII"),
    IrqSet: struct.Struct("=IIIII"),
    RegionAccess: struct.Struct("=QII"),
    Nothing: struct.Struct("="),
}


class Shape(NamedTuple):
    """What a request consists of: a fixed part, and whether data may follow it."""

    fixed: type[NamedTuple]
    data: bool = False


REQUESTS: dict[int, Shape] = {
    Command.VERSION: Shape(Version, data=True),
    Command.DMA_MAP: Shape(DmaMap),
    Command.DMA_UNMAP: Shape(DmaUnmap),
    Command.GET_INFO: Shape(DeviceInfo),
    Command.GET_REGION_INFO: Shape(RegionInfo),
    Command.GET_IRQ_INFO: Shape(IrqInfo),
    Command.SET_IRQS: Shape(IrqSet, data=True),
    Command.REGION_READ: Shape(RegionAccess),
    Command.REGION_WRITE: Shape(RegionAccess, data=True),
    Command.RESET: Shape(Nothing),
}
"""The requests that are understood. Every other command is answered with ENOTSUP."""


def size_of(kind: type[NamedTuple]) -> int:
    """Give the bytes that a structure takes."""
    return _LAYOUTS[kind].size


def pack(value: NamedTuple) -> bytes:
    """Write a structure.

    Raises:
        struct.error: a number does not fit into its field.
    """
    return _LAYOUTS[type(value)].pack(*value)


def unpack(kind: type[NamedTuple], data: bytes | bytearray) -> NamedTuple:
    """Read a structure from the beginning of ``data``, which must be long enough."""
    layout = _LAYOUTS[kind]
    return kind(*layout.unpack_from(data))


def message(command: int, body: bytes = b"", *, identifier: int = 0, flags: int = 0, error: int = 0) -> bytes:
    """Write a whole message."""
    return pack(Header(identifier, command, HEADER_SIZE + len(body), flags, error)) + body
