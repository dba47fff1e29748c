"""One PCI function of an emulated TPU: what it answers to each request. It knows no socket and cannot be broken.

Nothing is computed: BARs are memory, no interrupt is raised, no DMA is made. That is all a driver needs to bind, and a
program to open, map, read, write and reset it.
"""

from __future__ import annotations

import bisect
import errno
import json
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from tpu_image.lab.vfio_user import messages
from tpu_image.lab.vfio_user.config_space import SIZE as CONFIG_SIZE
from tpu_image.lab.vfio_user.config_space import Bar, ConfigSpace, Identity
from tpu_image.lab.vfio_user.messages import Command

VECTORS = 8
"""MSI-X vectors of a function."""

MSIX_BAR = 2
BARS = (Bar(0, 1 << 20), Bar(MSIX_BAR, 1 << 16, prefetchable=False), Bar(4, 1 << 20))
"""Three 64-bit BARs, as on a TPU: agents drive the chip through ``resource4``."""

MAX_DMA_MAPS = 65535
"""Mappings that may be valid at once (``max_dma_maps``, the protocol's default)."""

_READ, _WRITE = 1, 2
_DEVICE_RESET, _DEVICE_PCI = 1, 2
_IRQ_EVENTFD, _IRQ_NORESIZE = 1, 8
_UNMAP_ALL = 2
_IRQ_COUNTS = (0, 0, VECTORS, 1, 1)
_ADDRESS_END = 1 << 64


class RefusedError(Exception):
    """A request is answered with an error: ``number`` is its errno."""

    def __init__(self, number: int) -> None:
        super().__init__(errno.errorcode[number])
        self.number = number


class Statistics(NamedTuple):
    """What happened to a function since the server started.

    Attributes:
        clients: connections that agreed on a version.
        resets: by the request RESET; ``function_level_resets``: by the bit in Device Control.
        dma_maps: mappings made; ``dma_mapped``: bytes mapped now.
        reads, writes: of BARs alone.
        refused: requests answered with an error; ``dropped``: connections that broke the protocol.
        descriptors: file descriptors received, and closed.
    """

    clients: int
    resets: int
    function_level_resets: int
    dma_maps: int
    dma_mapped: int
    reads: int
    writes: int
    refused: int
    dropped: int
    descriptors: int


class TpuFunction:
    """A function with its registers, its memory and the mappings that its clients have announced."""

    def __init__(self, identity: Identity) -> None:
        self.counts: Counter[str] = Counter()
        self._config = ConfigSpace(identity, BARS, VECTORS, MSIX_BAR)
        self._memory = {bar.number: bytearray(bar.size) for bar in BARS}
        self._maps: list[tuple[int, int]] = []  # start and end, in order, without overlap

    def statistics(self) -> Statistics:
        """Give what was counted so far."""
        mapped = sum(end - start for start, end in self._maps)
        return Statistics(**{name: self.counts[name] for name in Statistics._fields} | {"dma_mapped": mapped})

    def reset(self) -> None:
        """Give registers and memory the content that they have after power-on."""
        self._config.reset()
        for memory in self._memory.values():
            memory[:] = bytes(len(memory))

    def forget_client(self) -> None:
        """Let go what belongs to a client that went away; the state of the device is retained, as specified."""
        self._maps.clear()

    def answer(self, command: int, body: bytes) -> bytes:
        """Give the body of the reply to a request.

        Raises:
            RefusedError: it is answered with an error.
        """
        shape = messages.REQUESTS.get(command)
        if shape is None:
            raise RefusedError(errno.ENOTSUP)
        size = messages.size_of(shape.fixed)
        if len(body) < size or (len(body) > size and not shape.data):
            raise RefusedError(errno.EINVAL)
        # A table from command to handler; each takes the fixed part that REQUESTS names for its command.
        handler = cast("Callable[[TpuFunction, Any, bytes], bytes]", _HANDLERS[command])
        return handler(self, messages.unpack(shape.fixed, body), body[size:])

    def _version(self, proposed: messages.Version, data: bytes) -> bytes:
        if proposed.major != 0:
            raise RefusedError(errno.EINVAL)
        _check_capabilities(data)
        capabilities = {
            "max_msg_fds": messages.MAX_FDS,
            "max_data_xfer_size": messages.MAX_TRANSFER,
            "max_dma_maps": MAX_DMA_MAPS,
            "pgsizes": 4096,
        }
        self.counts["clients"] += 1
        version = messages.Version(0, min(proposed.minor, 1))
        return messages.pack(version) + json.dumps({"capabilities": capabilities}).encode() + b"\0"

    def _dma_map(self, request: messages.DmaMap, _: bytes) -> bytes:
        start, end = request.address, request.address + request.size
        if start == end or end > _ADDRESS_END:
            raise RefusedError(errno.EINVAL)
        place = bisect.bisect_left(self._maps, (start, end))
        after = self._maps[place : place + 1]
        before = self._maps[place - 1 : place] if place else []
        if (after and after[0][0] < end) or (before and before[0][1] > start):
            raise RefusedError(errno.EEXIST)
        if len(self._maps) >= MAX_DMA_MAPS:
            raise RefusedError(errno.ENOSPC)
        self._maps.insert(place, (start, end))
        self.counts["dma_maps"] += 1
        return b""

    def _dma_unmap(self, request: messages.DmaUnmap, _: bytes) -> bytes:
        """Unmap all that lies in the range. The kernel's VFIO takes ranges too, and QEMU's virtual IOMMU sends them."""
        start, end = request.address, request.address + request.size
        if request.flags & _UNMAP_ALL:
            start, end = 0, _ADDRESS_END
        elif start == end or end > _ADDRESS_END:
            raise RefusedError(errno.EINVAL)
        self._maps = [(low, high) for low, high in self._maps if low < start or high > end]
        return messages.pack(request)

    def _info(self, _request: messages.DeviceInfo, _: bytes) -> bytes:
        flags = _DEVICE_RESET | _DEVICE_PCI
        size = messages.size_of(messages.DeviceInfo)
        return messages.pack(messages.DeviceInfo(size, flags, messages.REGIONS, messages.INTERRUPTS))

    def _region_info(self, request: messages.RegionInfo, _: bytes) -> bytes:
        if request.region >= messages.REGIONS:
            raise RefusedError(errno.EINVAL)
        size = self._region_size(request.region)
        flags = _READ | _WRITE if size else 0
        needed = messages.size_of(messages.RegionInfo)
        return messages.pack(messages.RegionInfo(needed, flags, request.region, 0, size, 0))

    def _irq_info(self, request: messages.IrqInfo, _: bytes) -> bytes:
        if request.interrupt >= messages.INTERRUPTS:
            raise RefusedError(errno.EINVAL)
        count = _IRQ_COUNTS[request.interrupt]
        flags = (_IRQ_EVENTFD if count else 0) | (_IRQ_NORESIZE if request.interrupt == messages.MSIX else 0)
        size = messages.size_of(messages.IrqInfo)
        return messages.pack(messages.IrqInfo(size, flags, request.interrupt, count))

    def _set_irqs(self, request: messages.IrqSet, _: bytes) -> bytes:
        """Accept what could be set; no interrupt is ever raised, so nothing is kept."""
        if request.interrupt >= messages.INTERRUPTS:
            raise RefusedError(errno.EINVAL)
        if request.first + request.vectors > _IRQ_COUNTS[request.interrupt]:
            raise RefusedError(errno.EINVAL)
        return b""

    def _read(self, request: messages.RegionAccess, _: bytes) -> bytes:
        self._check_access(request)
        if request.region == messages.CONFIG_REGION:
            return messages.pack(request) + self._config.read(request.offset, request.length)
        self.counts["reads"] += 1
        memory = self._memory[request.region]
        return messages.pack(request) + memory[request.offset : request.offset + request.length]

    def _write(self, request: messages.RegionAccess, data: bytes) -> bytes:
        self._check_access(request)
        if len(data) != request.length:
            raise RefusedError(errno.EINVAL)
        if request.region != messages.CONFIG_REGION:
            self.counts["writes"] += 1
            self._memory[request.region][request.offset : request.offset + request.length] = data
        elif self._config.write(request.offset, data):
            self.counts["function_level_resets"] += 1
            self.reset()
        return messages.pack(request)

    def _reset(self, _request: messages.Nothing, _: bytes) -> bytes:
        self.counts["resets"] += 1
        self.reset()
        return b""

    def _region_size(self, index: int) -> int:
        return CONFIG_SIZE if index == messages.CONFIG_REGION else len(self._memory.get(index, b""))

    def _check_access(self, request: messages.RegionAccess) -> None:
        if not 0 < request.length <= messages.MAX_TRANSFER:
            raise RefusedError(errno.EINVAL)
        if request.offset + request.length > self._region_size(request.region):
            raise RefusedError(errno.EINVAL)


_HANDLERS: dict[int, Callable[..., bytes]] = {
    Command.VERSION: TpuFunction._version,
    Command.DMA_MAP: TpuFunction._dma_map,
    Command.DMA_UNMAP: TpuFunction._dma_unmap,
    Command.GET_INFO: TpuFunction._info,
    Command.GET_REGION_INFO: TpuFunction._region_info,
    Command.GET_IRQ_INFO: TpuFunction._irq_info,
    Command.SET_IRQS: TpuFunction._set_irqs,
    Command.REGION_READ: TpuFunction._read,
    Command.REGION_WRITE: TpuFunction._write,
    Command.RESET: TpuFunction._reset,
}


def _check_capabilities(data: bytes) -> None:
    """Refuse version data that is no JSON object with a final NUL; what it proposes changes nothing here."""
    if not data:
        return
    if len(data) > 4096 or not data.endswith(b"\0"):
        raise RefusedError(errno.EINVAL)
    try:
        capabilities = json.loads(data[:-1].decode())
    except (ValueError, RecursionError) as error:
        raise RefusedError(errno.EINVAL) from error
    if not isinstance(capabilities, dict):
        raise RefusedError(errno.EINVAL)
