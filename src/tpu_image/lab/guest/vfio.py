"""Use TPU functions through VFIO as a framework would: every step as one line of JSON on standard output.

usage: vfio.py ADDRESS...

Sources: Linux, include/uapi/linux/vfio.h and iommufd.h; Documentation/driver-api/vfio.rst.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import mmap
import os
import struct
import sys
from collections.abc import Callable, Iterator

DEVICES = "/sys/bus/pci/devices"
MAPPED = 2 * 1024 * 1024
"""Bytes that are mapped for DMA: a huge page."""

IOVA = 0x10000000
"""Where the device sees them."""

_TYPE1V2 = 3
_CONFIG_REGION = 7
_READ_WRITE = 3
_DEVICE_RESETS = 1
_GROUP_VIABLE = 1
_FIXED_READ_WRITE = 7


def _request(number: int) -> int:
    """``_IO(';', number)``: VFIO's requests carry no size."""
    return ord(";") << 8 | number


GET_API_VERSION, CHECK_EXTENSION, SET_IOMMU = _request(100), _request(101), _request(102)
GROUP_GET_STATUS, GROUP_SET_CONTAINER = _request(103), _request(104)
GROUP_GET_DEVICE_FD, DEVICE_GET_INFO = _request(106), _request(107)
DEVICE_GET_REGION_INFO, DEVICE_RESET = _request(108), _request(111)
IOMMU_MAP_DMA, IOMMU_UNMAP_DMA = _request(113), _request(114)
BIND_IOMMUFD, ATTACH_PAGE_TABLE = _request(118), _request(119)
IOAS_ALLOC, IOAS_MAP = _request(0x81), _request(0x85)


class FailedError(Exception):
    """A step did not do what it should."""


class Steps:
    """Prints the steps of one device through one interface, and ends at the first that fails."""

    def __init__(self, address: str, interface: str) -> None:
        self.address, self.interface = address, interface

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[list[str]]:
        """Run a step; what is put into the list given becomes its detail."""
        detail: list[str] = []
        try:
            yield detail
        except (OSError, FailedError) as error:
            told = getattr(error, "strerror", None) or str(error)
            self._print(name, False, told)
            raise FailedError(name) from error
        self._print(name, True, " ".join(detail))

    def _print(self, name: str, ok: bool, detail: str) -> None:
        line = {"kind": "step", "address": self.address, "interface": self.interface, "name": name}
        print(json.dumps(dict(line, ok=ok, detail=detail)), flush=True)


@contextlib.contextmanager
def opened(path: str) -> Iterator[int]:
    """Open a node for reading and writing."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def use_group(address: str) -> None:
    """Go the whole way through a container and the device's group."""
    group = os.path.basename(os.readlink(f"{DEVICES}/{address}/iommu_group"))
    steps = Steps(address, "group")
    with contextlib.ExitStack() as stack:
        with steps.step("open container"):
            container = stack.enter_context(opened("/dev/vfio/vfio"))
        with steps.step("open group") as detail:
            detail.append("/dev/vfio/" + group)
            descriptor = stack.enter_context(opened(detail[0]))
        with steps.step("group is viable"):
            if (
                not _words("II", fcntl.ioctl(descriptor, GROUP_GET_STATUS, struct.pack("II", 8, 0)))[1]
                & _GROUP_VIABLE
            ):
                raise FailedError("a device of the group has another driver")
        with steps.step("SET_CONTAINER"):
            fcntl.ioctl(descriptor, GROUP_SET_CONTAINER, struct.pack("i", container))
        with steps.step("SET_IOMMU"):
            fcntl.ioctl(container, SET_IOMMU, _TYPE1V2)
        with steps.step("GET_DEVICE_FD"):
            # Only with a buffer that may be changed is the answer the system call's own: the descriptor.
            device = fcntl.ioctl(descriptor, GROUP_GET_DEVICE_FD, bytearray(address.encode() + b"\0"), True)
            stack.callback(os.close, device)
        use_device(steps, address, device, lambda at: map_type1(container, at))


def map_type1(container: int, address: int) -> None:
    """Let the device see memory, through a container of type 1."""
    request = struct.pack("IIQQQ", 32, _READ_WRITE, address, IOVA, MAPPED)
    fcntl.ioctl(container, IOMMU_MAP_DMA, request)


def use_character_device(address: str, name: str) -> None:
    """Go the whole way through the device's own node and iommufd (Linux 6.6 and newer)."""
    steps = Steps(address, "cdev")
    with contextlib.ExitStack() as stack:
        with steps.step("open device") as detail:
            detail.append("/dev/vfio/devices/" + name)
            device = stack.enter_context(opened(detail[0]))
        with steps.step("open /dev/iommu"):
            iommu = stack.enter_context(opened("/dev/iommu"))
        with steps.step("BIND_IOMMUFD"):
            fcntl.ioctl(device, BIND_IOMMUFD, struct.pack("IIiI", 16, 0, iommu, 0))
        with steps.step("IOAS_ALLOC"):
            space = _words("III", fcntl.ioctl(iommu, IOAS_ALLOC, struct.pack("III", 12, 0, 0)))[2]
        with steps.step("ATTACH_PT"):
            fcntl.ioctl(device, ATTACH_PAGE_TABLE, struct.pack("III", 12, 0, space))
        use_device(steps, address, device, lambda at: map_iommufd(iommu, space, at))


def map_iommufd(iommu: int, space: int, address: int) -> None:
    """Let the device see memory, through an address space of iommufd."""
    request = struct.pack("IIIIQQQ", 40, _FIXED_READ_WRITE, space, 0, address, MAPPED, IOVA)
    fcntl.ioctl(iommu, IOAS_MAP, request)


def use_device(steps: Steps, address: str, device: int, map_memory: Callable[[int], None]) -> None:
    """Read the configuration space, map memory and reset, through an open device."""
    with steps.step("GET_INFO"):
        flags = _words("IIII", fcntl.ioctl(device, DEVICE_GET_INFO, struct.pack("IIII", 16, 0, 0, 0)))[1]
    with steps.step("read config") as detail:
        request = struct.pack("IIIIQQ", 32, 0, _CONFIG_REGION, 0, 0, 0)
        offset = _words("IIIIQQ", fcntl.ioctl(device, DEVICE_GET_REGION_INFO, request))[5]
        ids = os.pread(device, 4, offset)
        detail.append("{:04x}:{:04x}".format(*_words("HH", ids)))
        if detail[0] != "{}:{}".format(*(_attribute(address, name)[2:] for name in ("vendor", "device"))):
            raise FailedError(f"the device says {detail[0]}")
    with steps.step("MAP_DMA") as detail:
        memory = mmap.mmap(-1, MAPPED)
        memory[:8] = b"\xff" * 8
        map_memory(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
        detail.append("2 MiB")
    with steps.step("RESET"):
        if not flags & _DEVICE_RESETS:
            raise FailedError("the device has no reset")
        fcntl.ioctl(device, DEVICE_RESET)


def _words(form: str, data: bytes) -> tuple[int, ...]:
    return struct.unpack(form, data)


def _attribute(address: str, name: str) -> str:
    with open(f"{DEVICES}/{address}/{name}", encoding="ascii") as file:
        return file.read().strip()


def character_devices(address: str) -> list[str]:
    """Name the device's own nodes; none before Linux 6.6, or where it is built without them."""
    try:
        names = sorted(os.listdir(f"{DEVICES}/{address}/vfio-dev"))
    except OSError:
        return []
    return [name for name in names if os.path.exists("/dev/vfio/devices/" + name)]


def main(addresses: list[str]) -> None:
    """Use each function by each interface that it has; a failure ends that interface's steps alone."""
    for address in addresses:
        uses: list[Callable[[], None]] = [lambda a=address: use_group(a)]  # type: ignore[misc]
        uses += [lambda a=address, n=name: use_character_device(a, n) for name in character_devices(address)]  # type: ignore[misc]
        for use in uses:
            with contextlib.suppress(FailedError):
                try:
                    use()
                except OSError as error:  # no group, or the device has gone
                    with Steps(address, "group").step("find group"):
                        raise FailedError(error.strerror or "no IOMMU group") from error


if __name__ == "__main__":
    main(sys.argv[1:])
