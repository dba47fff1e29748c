"""Writing what was changed on a disk as a qcow2 image over that disk.

Only clusters that hold a change are stored, so it is as small as the edit. It names no backing file: whoever opens it
says what lies behind it. Source: QEMU, docs/interop/qcow2.rst (version 3).
"""

from __future__ import annotations

import struct
from typing import BinaryIO

from tpu_image.disks.edited import EditedDisk
from tpu_image.disks.errors import UnsupportedError
from tpu_image.disks.qcow2_header import MAGIC

CLUSTER_BITS = 16
CLUSTER = 1 << CLUSTER_BITS
"""Bytes of a cluster: qemu-img's default."""

ENTRIES = CLUSTER // 8
"""Entries of an L2 table."""

REFCOUNTS = CLUSTER // 2
"""Clusters whose reference counts, 16 bits each, one cluster holds."""

_COPIED = 1 << 63
_VERSION, _HEADER_LENGTH, _REFCOUNT_ORDER = 3, 104, 4


def write_overlay(disk: EditedDisk, file: BinaryIO) -> None:
    """Write the changes of a disk into an empty file, as an image of the disk's size.

    Raises:
        UnsupportedError: the disk is so large that its tables do not fit.
    """
    changed = disk.changed_units(CLUSTER)
    tables = sorted({cluster // ENTRIES for cluster in changed})
    l1_entries = -(-disk.size // (CLUSTER * ENTRIES))
    l1_clusters = -(-l1_entries * 8 // CLUSTER)
    # Header, refcount table, refcount block, then L1, the L2 tables, the data.
    l1_at = 3
    l2_at = l1_at + l1_clusters
    data_at = l2_at + len(tables)
    total = data_at + len(changed)
    if total > REFCOUNTS:
        raise UnsupportedError("is too large for an overlay", disk.name, "name a smaller disk")
    file.write(_header(-(-disk.size // 512) * 512, l1_entries, l1_at))
    file.write(struct.pack(">Q", 2 * CLUSTER).ljust(CLUSTER, b"\0"))
    file.write(struct.pack(f">{total}H", *[1] * total).ljust(CLUSTER, b"\0"))
    file.write(_entries(dict(zip(tables, range(l2_at, data_at), strict=True)), l1_clusters * ENTRIES))
    placed = dict(zip(changed, range(data_at, total), strict=True))
    for table in tables:
        first = table * ENTRIES
        within = {c - first: at for c, at in placed.items() if c // ENTRIES == table}
        file.write(_entries(within, ENTRIES))
    for cluster in changed:
        offset = cluster * CLUSTER
        file.write(disk.read_at(offset, min(CLUSTER, disk.size - offset)).ljust(CLUSTER, b"\0"))
    file.flush()


def _header(size: int, l1_entries: int, l1_at: int) -> bytes:
    fields = struct.pack(
        ">4sIQIIQIIQQIIQQQQII",
        MAGIC,
        _VERSION,
        *(0, 0),  # no name of a backing file
        CLUSTER_BITS,
        size,
        0,  # not encrypted
        l1_entries,
        l1_at * CLUSTER,
        CLUSTER,  # the refcount table
        1,
        *(0, 0),  # no snapshots
        *(0, 0, 0),  # no features
        _REFCOUNT_ORDER,
        _HEADER_LENGTH,
    )
    return fields.ljust(CLUSTER, b"\0")


def _entries(clusters: dict[int, int], count: int) -> bytes:
    table = [0] * count
    for index, cluster in clusters.items():
        table[index] = cluster * CLUSTER | _COPIED
    return struct.pack(f">{count}Q", *table)
