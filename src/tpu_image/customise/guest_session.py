"""A session as a virtual machine gets it: a tar archive on a disk, with a shell script that is its first process.

The archive is unpacked into memory by the image's own tar; nothing of it touches the image's disk.
"""

from __future__ import annotations

import io
import re
import shlex
import tarfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import BinaryIO
from urllib.parse import urlsplit, urlunsplit

from tpu_image.customise.confinement import IN_MEMORY
from tpu_image.customise.environment import ENVIRONMENT, RESOLVER, STAND_INS, proxies
from tpu_image.customise.mounting import MountedVolume
from tpu_image.customise.session import GIVEN, CustomisationError, Session
from tpu_image.customise.stand_ins import ASIDE

OWN = ".session"
"""Folder below :data:`GIVEN` of what is not the user's."""

ADDRESS, GATEWAY, NAME_SERVER = "10.0.2.15/24", "10.0.2.2", "10.0.2.3"
"""The network as QEMU's user-mode networking has it (QEMU's manual, "Using the user mode network stack")."""

DISK = "/dev/sda"
"""The image's disk: the only one on SCSI, as Compute Engine has it."""

SESSION_DISK = "/dev/vda"
PAGE = 4096

START = (
    "PATH=/usr/sbin:/usr/bin:/sbin:/bin; modprobe -q virtio_blk; mount -t tmpfs -o mode=0755,size=80% tmpfs /run;"
    f" mkdir {GIVEN}; tar -xf {SESSION_DISK} -C {GIVEN}; exec /bin/sh {GIVEN}/{OWN}/guest.sh"
)
"""What a shell in place of init does first; it stands between double quotes on the kernel's command line."""

START_NEEDS = ("sh", "mount", "mkdir", "tar")
"""Programs without which nothing is ever heard of the machine."""

STAND_INS_IN_GUEST = ((RESOLVER, f"nameserver {NAME_SERVER}\n", 0o644), *STAND_INS)

LOOPBACK = re.compile(r"localhost|127(\.[0-9]{1,3}){3}", re.IGNORECASE)


def write_session(file: BinaryIO, session: Session, volumes: Sequence[MountedVolume], token: str) -> None:
    """Write the disk that a session comes on.

    Args:
        file: an empty file.
        session: what is to run.
        volumes: of the image, its root first.
        token: begins each line that the machine tells; nothing else may begin so.

    Raises:
        CustomisationError: a folder holds too deep ones.
        OSError: a folder cannot be read, or there is no room.
    """
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in _own_files(session, volumes, token).items():
            _add(archive, f"{OWN}/{name}", content, 0o600)
        for name, content in session.files.items():
            _add(archive, name, content, 0o700)
        for name, folder in session.folders.items():
            try:
                archive.add(folder.resolve(), name, filter=_as_roots)
            except RecursionError:
                raise CustomisationError(f"{folder}: its folders are too deep") from None


def size_of(session: Session) -> int:
    """Bytes that a session's files and folders take in memory, which holds them in pages."""
    folders = (
        path.lstat().st_size for folder in session.folders.values() for path in folder.resolve().rglob("*")
    )
    sizes = (*folders, *map(len, session.files.values()))
    return sum(size + PAGE for size in sizes)


def device_of(volume: MountedVolume) -> str:
    """Where the guest has a volume."""
    return f"{DISK}{volume.number or ''}"


def _own_files(session: Session, volumes: Sequence[MountedVolume], token: str) -> dict[str, bytes]:
    guest = (resources.files(__package__) / "files/guest.sh").read_bytes()
    settings = "\n".join(_settings(session, volumes, token)) + "\n"
    stand_ins = {
        f"stand-in-{number}": content.encode() for number, (_, content, _) in enumerate(STAND_INS_IN_GUEST)
    }
    return {"guest.sh": guest, "settings.sh": settings.encode("utf-8", "surrogateescape"), **stand_ins}


def _settings(session: Session, volumes: Sequence[MountedVolume], token: str) -> Iterator[str]:
    """The part of the script that is this session's own."""
    yield f"TOKEN={token} ROOT={device_of(volumes[0])} ASIDE={ASIDE}"
    yield "prepare() {"
    for volume in volumes:
        for name in volume.links:
            yield f"    link {shlex.quote(name)} {device_of(volume)}"
    for number, volume in enumerate(volumes[1:]):
        path = shlex.quote(volume.path)
        if volume.path.split("/")[1] in IN_MEMORY:
            yield f"    leave_out {path}"
        else:
            yield f"    mount_volume {path} {device_of(volume)} {volume.kind} {number}"
    for number, (path, _, mode) in enumerate(STAND_INS_IN_GUEST):
        yield f"    put {path} {mode:04o} {number}"
    yield f"    start_network {ADDRESS} {GATEWAY}"
    yield "}"
    yield "run_steps() {"
    yield "    :"  # a function has a body
    for number, step in enumerate(session.steps):
        yield f"    step {number} {shlex.join(step.arguments)}"
    yield "}"
    yield "give_back() {"
    for number, (path, _, _) in enumerate(STAND_INS_IN_GUEST):
        yield f"    take_away {path} {number}"
    for number, volume in reversed([*enumerate(volumes[1:])]):
        yield f"    unmount_volume {shlex.quote(volume.path)} {number}"
    yield "}"
    yield "execute() {"
    variables = {**ENVIRONMENT, **_reachable(proxies()), **session.environment}
    given = shlex.join(f"{name}={value}" for name, value in variables.items())
    # A shell, since env(1) would take a program whose path has a "=" for a variable.
    yield f"""    exec setsid env -i {given} /bin/sh -c 'exec "$@"' sh "$@\""""
    yield "}"


def _reachable(given: Mapping[str, str]) -> dict[str, str]:
    """Name a proxy on this machine's loopback as the guest reaches it."""
    return {name: value if name.lower() == "no_proxy" else _through(value) for name, value in given.items()}


def _through(proxy: str) -> str:
    try:
        parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    except ValueError:  # what is no URL is for the programs that use it to refuse
        return proxy
    if not LOOPBACK.fullmatch(parts.hostname or ""):
        return proxy
    credentials, at, place = parts.netloc.rpartition("@")
    _, colon, port = place.partition(":")
    named = urlunsplit(parts._replace(netloc=f"{credentials}{at}{GATEWAY}{colon}{port}"))
    return named if "//" in proxy else named.removeprefix("//")


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode, entry.mtime = len(content), mode, int(time.time())
    archive.addfile(entry, io.BytesIO(content))


def _as_roots(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Give what a user brings to root; what is neither file, folder nor link is left out."""
    if not (entry.isfile() or entry.isdir() or entry.issym() or entry.islnk()):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry
