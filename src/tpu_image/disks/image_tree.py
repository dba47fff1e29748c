"""One tree of the operating system on a disk: its root with /boot and the EFI partition in their places.

The root is found by what it holds, and by its partition's type, its label and its fstab where several could
be it. The others follow the root's own /etc/fstab, and where that is silent the partition types (UAPI Group,
"Discoverable Partitions Specification").
"""

from __future__ import annotations

from typing import NamedTuple

from tpu_image.disks.errors import DamagedError, DiskError, UnsupportedError
from tpu_image.disks.fstab import Mount, parse_fstab
from tpu_image.disks.mounted import MountedTree
from tpu_image.disks.partitions import PartitionTable, read_partition_table
from tpu_image.disks.source import BlockSource
from tpu_image.disks.volumes import (
    EXT_KINDS,
    MANUALLY,
    READABLE_KINDS,
    Volume,
    device_tree,
    find_volume,
    keys_of,
    tree_of,
    volumes_of,
)
from tpu_image.trees.base import Tree, TreeError

ROOT_TYPES = ("4f68bce3-e8cd-4db1-96e7-fbcaf984b709", "b921b045-1df0-41c3-af44-4c6f280d3fae")
EFI_TYPES = ("c12a7328-f81f-11d2-ba4b-00a0c93ec93b", "0xef")
BOOT_TYPES = ("bc13c2ff-59e6-4262-a352-b275fd6f7172", "0xea")

RELEASE_FILES = ("/etc/os-release", "/usr/lib/os-release")
INIT_FILES = ("/sbin/init", "/usr/lib/systemd/systemd", "/lib/systemd/systemd", "/usr/sbin/init")

FSTAB_LIMIT = 256 * 1024
"""Bytes of /etc/fstab; a larger one is taken as none."""

KERNELS = "vmlinu[xz]*"
"""Names of kernels, as a shell pattern."""

ROOT_LABELS = ("root", "cloudimg-rootfs", "rootfs", "/")

NEEDED_MOUNTS = ("/boot", "/boot/efi", "/efi", "/usr", "/var", "/opt")
"""Where a system's own files are: an image that lacks what /etc/fstab has there is refused."""


class Place(NamedTuple):
    """Where a volume's files are in the tree."""

    path: str
    volume: Volume
    tree: Tree


class ImageTree(MountedTree):
    """The files of the system on a disk, with what is known of the disk.

    Its ``/dev/disk/by-uuid``, ``by-partuuid``, ``by-label`` and ``by-partlabel`` name the disk's own volumes as
    udev would, so that what refers to one is judged in an image as on a running machine.
    """

    def __init__(
        self,
        source: BlockSource,
        table: PartitionTable,
        volumes: tuple[Volume, ...],
        places: tuple[Place, ...],
    ) -> None:
        trees = {place.path: place.tree for place in places}
        super().__init__({**trees, "/dev": device_tree(volumes)})
        self.source = source
        self.table = table
        self.volumes = volumes
        self.places = places

    @property
    def root(self) -> Place:
        """The root file system."""
        return self.places[0]

    def place_of(self, path: str) -> tuple[Place, str]:
        """Give the place that a canonical path is in, and the path within it.

        Raises:
            KeyError: the path is below /dev, which is on no volume.
        """
        mount, inner = self.locate(path)
        return {place.path: place for place in self.places}[mount], inner


def open_tree(source: BlockSource) -> ImageTree:
    """Find the operating system on a disk.

    Raises:
        UnsupportedError: no root is found that is supported, or a part it needs is not; named.
        DamagedError: the partition table or a file system is damaged.
    """
    table = read_partition_table(source)
    volumes = volumes_of(source, table)
    root = find_root(source, volumes)
    try:
        places = (root, *mounted_on(root, volumes))
    except TreeError as error:
        raise DamagedError(str(error), root.volume.source.name) from None
    return ImageTree(source, table, volumes, places)


def mounted_on(root: Place, volumes: tuple[Volume, ...]) -> list[Place]:
    """Open what belongs below the root, outer mount points first; what cannot be opened may be missing elsewhere."""
    tree = MountedTree({"/": root.tree})
    places = []
    for path, volume in mounts_of(tree, volumes, root.volume):
        try:
            place = Place(path, volume, tree_of(volume, path))
        except DiskError:
            if path in NEEDED_MOUNTS:
                raise
            continue
        places.append(place)
        tree.mount(path, place.tree)
    return places


def find_root(source: BlockSource, volumes: tuple[Volume, ...]) -> Place:
    """Find the root file system among the volumes.

    Raises:
        UnsupportedError: none is found, with what was found instead; or several that nothing tells apart.
        DiskError: what is wrong with the one file system that could be it.
    """
    roots = []
    errors: list[DiskError] = []
    for volume in volumes:
        if volume.kind not in EXT_KINDS:
            continue
        try:
            tree = tree_of(volume, "/")
        except DiskError as error:
            errors.append(error)
            continue
        if holds_system(tree):
            roots.append(Place("/", volume, tree))
    for preferred in (is_root_type, has_root_label, mounts_itself):
        if len(roots) > 1:
            roots = [place for place in roots if preferred(place)] or roots
    if len(roots) == 1:
        return roots[0]
    if roots:
        several = ", ".join(place.volume.called for place in roots)
        raise UnsupportedError(f"has several root file systems ({several})", source.name, "leave one of them")
    raise errors[0] if errors else no_root(source, volumes)


def no_root(source: BlockSource, volumes: tuple[Volume, ...]) -> DiskError:
    """Say why there is no root: what the disk holds that could have it."""
    found = [
        f"{volume.file_system.called} ({volume.called})"
        for volume in volumes
        if volume.file_system and volume.kind not in (*READABLE_KINDS, "swap")
    ]
    if found:
        return UnsupportedError(f"the root can only be on {', '.join(found)}", source.name, MANUALLY)
    if not any(volume.file_system for volume in volumes):
        return UnsupportedError(
            "no partition table or file system is found", source.name, "name the image of a whole disk"
        )
    return UnsupportedError(
        "no file system with /etc/os-release and an init is found", source.name, "name the image of a system"
    )


def holds_system(tree: Tree) -> bool:
    """Whether a file system is the root of an operating system."""
    try:
        return any(tree.lstat(path) for path in RELEASE_FILES) and any(
            tree.lstat(path) for path in INIT_FILES
        )
    except TreeError:
        return False


def is_root_type(place: Place) -> bool:
    """Whether the partition's type says root."""
    return place.volume.type in ROOT_TYPES


def has_root_label(place: Place) -> bool:
    """Whether the file system or the partition is labelled as a root."""
    return any(
        label.lower() in ROOT_LABELS for key, label in keys_of(place.volume) if key in ("label", "partlabel")
    )


def mounts_itself(place: Place) -> bool:
    """Whether its /etc/fstab has this very volume as the root."""
    return any(m.path == "/" and find_volume(m.device, (place.volume,)) for m in fstab_of(place.tree))


def fstab_of(tree: Tree) -> list[Mount]:
    """Read a root's /etc/fstab; empty where it is absent or cannot be read."""
    try:
        return parse_fstab(tree.read_text_if_present("/etc/fstab", FSTAB_LIMIT) or "")
    except TreeError:
        return []


def mounts_of(tree: Tree, volumes: tuple[Volume, ...], root: Volume) -> list[tuple[str, Volume]]:
    """Say which volumes belong where below the root, outer mount points first.

    Raises:
        UnsupportedError: fstab takes a part of the system from a volume that the disk does not have.
    """
    found: dict[str, Volume] = {}
    for mount in fstab_of(tree):
        path = tree.resolve(mount.path)
        volume = find_volume(mount.device, volumes)
        if path == "/" or volume is root:
            continue
        if volume is None:
            if path in NEEDED_MOUNTS and not mount.optional:
                raise UnsupportedError(
                    f"/etc/fstab mounts {path} from {mount.device!r}, which this disk does not have",
                    root.source.name,
                    "correct /etc/fstab, or name the image of the disk that has it",
                )
        elif path in NEEDED_MOUNTS or volume.kind in READABLE_KINDS:
            found[path] = volume
    others = tuple(volume for volume in volumes if volume is not root and volume not in found.values())
    if "/boot" not in found:
        found.update(find_boot(tree, others))
    if not {"/boot/efi", "/efi"} & found.keys():
        found.update(find_efi(tree, tuple(volume for volume in others if volume not in found.values())))
    return sorted(found.items(), key=lambda item: item[0].count("/"))


def find_boot(tree: Tree, volumes: tuple[Volume, ...]) -> dict[str, Volume]:
    """Find the volume of /boot where fstab names none: by type, otherwise by a kernel in its root."""
    if tree.names("/boot", KERNELS):
        return {}
    by_type = [volume for volume in volumes if volume.type in BOOT_TYPES and volume.kind in READABLE_KINDS]
    candidates = by_type or [
        volume for volume in volumes if volume.kind in EXT_KINDS and holds_kernel(volume)
    ]
    return {"/boot": candidates[0]} if len(candidates) == 1 else {}


def holds_kernel(volume: Volume) -> bool:
    """Whether a file system is a /boot."""
    try:
        return bool(tree_of(volume, "/boot").names("/", KERNELS))
    except (DiskError, TreeError):
        return False


def find_efi(tree: Tree, volumes: tuple[Volume, ...]) -> dict[str, Volume]:
    """Find the EFI system partition where fstab names none, by its type."""
    candidates = [volume for volume in volumes if volume.type in EFI_TYPES and volume.kind == "vfat"]
    path = "/efi" if tree.is_directory("/efi") and not tree.is_directory("/boot/efi") else "/boot/efi"
    return {path: candidates[0]} if candidates else {}
