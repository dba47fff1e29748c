"""The configuration space of an emulated TPU function: 4096 bytes of PCI Express registers.

Offsets and fields: PCI Local Bus 3.0, chapter 6 (header, MSI-X); PCI Power Management 1.2, section 3.2; PCI Express
Base 4.0, sections 7.5.3 (the PCI Express capability) and 7.7.8 (ACS); the names are those of ``<linux/pci_regs.h>``.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

SIZE = 4096

ACCELERATOR_CLASS = 0x120000
"""Class code "processing accelerator" (PCI Code and ID Assignment 1.11, class 12h)."""

_COMMAND, _STATUS, _REVISION, _BAR0, _SUBSYSTEM, _CAPABILITIES, _INTERRUPT_LINE = (
    4,
    6,
    8,
    0x10,
    0x2C,
    0x34,
    0x3C,
)
_POWER, _MSIX, _EXPRESS, _ACS = 0x40, 0x50, 0x70, 0x100

_CAPABILITY_LIST = 0x0010
_COMMAND_WRITABLE = 0x0546
"""Memory space, bus master, parity response, SERR, interrupt disable: what a function without I/O ports has."""

_FUNCTION_LEVEL_RESET = 0x8000
"""In Device Control: the function resets itself (PCI_EXP_DEVCTL_BCR_FLR)."""

_DEVICE_CAPABILITIES = 0x10008000
"""Function level reset (bit 28) and role-based error reporting (bit 15), which PCI Express 1.1 and later require."""

_DEVICE_CONTROL = 0x2810
"""Relaxed ordering, no snoop, and a maximum read request of 512 bytes: the values after a reset."""

_LINK_CAPABILITIES = 0x00000104
"""Sixteen lanes of 16 GT/s."""

_LINK_STATUS = 0x1104
"""The link as it can be, with the slot's clock."""


class Identity(NamedTuple):
    """The ids by which drivers and udev rules know a function."""

    vendor: int
    device: int
    subsystem_vendor: int
    subsystem_device: int


class Bar(NamedTuple):
    """A 64-bit memory BAR. ``number`` is even, since it takes two registers; ``size`` in bytes, a power of two."""

    number: int
    size: int
    prefetchable: bool = True


class ConfigSpace:
    """Registers with their values and, bit by bit, what of them can be written."""

    def __init__(self, identity: Identity, bars: tuple[Bar, ...], vectors: int, msix_bar: int) -> None:
        self._identity = identity
        self._bars = bars
        self._vectors = vectors
        self._msix_bar = msix_bar
        self.reset()

    def reset(self) -> None:
        """Give every register the value it has after a reset."""
        self._values = bytearray(SIZE)
        self._writable = bytearray(SIZE)
        self._lay_header()
        for bar in self._bars:
            self._lay_bar(bar)
        self._lay_capabilities()

    def read(self, offset: int, count: int) -> bytes:
        """Read bytes that lie inside."""
        return bytes(self._values[offset : offset + count])

    def write(self, offset: int, data: bytes) -> bool:
        """Write the bits that can be written, and give whether the function was told to reset itself."""
        for place, value in enumerate(data, offset):
            mask = self._writable[place]
            self._values[place] = self._values[place] & ~mask | value & mask
        control = struct.unpack_from("<H", self._values, _EXPRESS + 8)[0]
        return bool(control & _FUNCTION_LEVEL_RESET)

    def _lay(self, layout: str, offset: int, *values: int) -> None:
        struct.pack_into(layout, self._values, offset, *values)

    def _allow(self, layout: str, offset: int, *masks: int) -> None:
        struct.pack_into(layout, self._writable, offset, *masks)

    def _lay_header(self) -> None:
        identity = self._identity
        self._lay("<HHHH", 0, identity.vendor, identity.device, 0, _CAPABILITY_LIST)
        self._lay("<I", _REVISION, ACCELERATOR_CLASS << 8 | 1)
        self._lay("<HH", _SUBSYSTEM, identity.subsystem_vendor, identity.subsystem_device)
        self._lay("<B", _CAPABILITIES, _POWER)
        self._allow("<H", _COMMAND, _COMMAND_WRITABLE)
        # The interrupt pin stays 0: there is no INTx, so nothing has to be routed.
        self._allow("<B", _INTERRUPT_LINE, 0xFF)

    def _lay_bar(self, bar: Bar) -> None:
        offset = _BAR0 + 4 * bar.number
        self._lay("<I", offset, 0x4 | (0x8 if bar.prefetchable else 0))
        # Software finds the size by writing ones: the bits below it stay 0 (PCI 3.0, section 6.2.5.1).
        self._allow("<Q", offset, (1 << 64) - bar.size)

    def _lay_capabilities(self) -> None:
        self._lay("<BBHI", _POWER, 0x01, _MSIX, 0x0003, 0x0008)  # version 3, no soft reset
        self._allow("<H", _POWER + 4, 0x0003)
        table, pending = self._msix_bar, 0x8000 | self._msix_bar
        self._lay("<BBHII", _MSIX, 0x11, _EXPRESS, self._vectors - 1, table, pending)
        self._allow("<H", _MSIX + 2, 0xC000)
        self._lay(
            "<BBHIH", _EXPRESS, 0x10, 0, 0x0002, _DEVICE_CAPABILITIES, _DEVICE_CONTROL
        )  # version 2, endpoint
        self._lay("<IHH", _EXPRESS + 12, _LINK_CAPABILITIES, 0, _LINK_STATUS)
        self._allow("<H", _EXPRESS + 8, 0xFFFF)
        # Access Control Services without one control: functions of one slot do not reach each other, so that each is
        # in an IOMMU group of its own (drivers/iommu/iommu.c, get_pci_function_alias_group).
        self._lay("<IHH", _ACS, 0x0001000D, 0, 0)
