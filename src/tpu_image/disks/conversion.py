"""Other hypervisors' formats, read through qemu-img where it is installed.

The result goes into a file without a name, so nothing is left behind however this process ends.
"""

from __future__ import annotations

import os

from tpu_image.disks.errors import DamagedError, DiskError, UnsupportedError
from tpu_image.disks.raw import RawSource
from tpu_image.disks.source import BlockSource

DRIVERS = {"vmdk": "vmdk", "vhdx": "vhdx", "vhd": "vpc", "vdi": "vdi"}
"""qemu-img's drivers by the names of the formats."""

TIME_LIMIT = 3600
"""Seconds that a conversion may take."""

VHD_FOOTER = 512
"""Bytes that stand behind the disk in a VHD."""

_VHD_FIXED, _VHD_DIFFERENCING = 2, 4


def open_foreign(file: RawSource, form: str) -> BlockSource:
    """Make a disk of an image in another format; the file is closed once it is no longer needed.

    Raises:
        UnsupportedError: the format, or what the image asks for, is not supported; named.
        DiskError: qemu-img is not installed or fails.
    """
    if form not in DRIVERS:
        raise UnsupportedError(
            f"is in the format {form}", file.name, "convert it with: qemu-img convert -O qcow2"
        )
    if form == "vhd":
        kind, size = read_vhd_footer(file)
        if kind == _VHD_FIXED:
            return _fixed_vhd(file, size)
    if form == "vmdk":
        _refuse_vmdk_of_several_files(file)
    converted = _convert(file, form)
    file.close()
    return converted


def read_vhd_footer(file: BlockSource) -> tuple[int, int]:
    """Read the last 512 bytes of a VHD (Microsoft, "Virtual Hard Disk Image Format Specification").

    Returns:
        The disk's kind and its size in bytes.

    Raises:
        UnsupportedError: the image is one of differences to another file.
    """
    if file.size < VHD_FOOTER:
        raise DamagedError("is cut short", file.name)
    footer = file.read_at(file.size - VHD_FOOTER, VHD_FOOTER)
    if footer[:8] != b"conectix":
        raise DamagedError("has no VHD footer (cut short?)", file.name)
    kind = int.from_bytes(footer[60:64], "big")
    if kind == _VHD_DIFFERENCING:
        raise UnsupportedError("is a differencing VHD", file.name, "merge it with its parent first")
    return kind, int.from_bytes(footer[48:56], "big")


def _fixed_vhd(file: RawSource, size: int) -> BlockSource:
    """A fixed VHD is the disk as it is, with a footer behind it."""
    if size > file.size - VHD_FOOTER:
        raise DamagedError(f"holds less than the {size} bytes its footer speaks of", file.name)
    file.size = size
    file.container = "vhd"
    return file


def _refuse_vmdk_of_several_files(file: BlockSource) -> None:
    """Refuse the kinds of VMDK in which a text names further files, which could be any of this machine's."""
    start = file.read_at(0, min(512, file.size))
    capacity = int.from_bytes(start[12:20], "little") if start[:4] == b"KDMV" else 0
    if not capacity:
        raise UnsupportedError(
            "is a VMDK that names other files",
            file.name,
            "convert it with: qemu-img convert -O qcow2, if you trust it",
        )


def _convert(file: RawSource, form: str) -> BlockSource:
    import json
    import subprocess
    import tempfile

    source: dict[str, object] = {
        "driver": DRIVERS[form],
        "file": {"driver": "file", "filename": f"/proc/self/fd/{file.descriptor}"},
    }
    if form == "vmdk":
        source["backing"] = None  # the text inside may name a parent
    with tempfile.TemporaryFile() as target:
        descriptors = (file.descriptor, target.fileno())
        command = [
            "qemu-img",
            "convert",
            "-O",
            "raw",
            f"json:{json.dumps(source)}",
            f"/proc/self/fd/{descriptors[1]}",
        ]
        try:
            subprocess.run(
                command,
                pass_fds=descriptors,
                check=True,
                capture_output=True,
                timeout=TIME_LIMIT,
                stdin=subprocess.DEVNULL,
            )
        except FileNotFoundError:
            raise UnsupportedError(
                f"is in the format {form}, which is read through qemu-img", file.name, "install qemu-utils"
            ) from None
        except subprocess.TimeoutExpired:
            raise DiskError(
                "qemu-img takes too long", file.name, "convert it with: qemu-img convert -O qcow2"
            ) from None
        except subprocess.CalledProcessError as error:
            lines = error.stderr.decode("utf-8", "replace").strip().splitlines()
            reason = lines[-1].rpartition(": ")[2] if lines else f"exit status {error.returncode}"
            raise DamagedError(f"qemu-img cannot read this {form}: {reason}", file.name) from None
        converted = RawSource(os.dup(target.fileno()), file.name)
    converted.container = form
    return converted
