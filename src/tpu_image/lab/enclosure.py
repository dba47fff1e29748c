"""A network of the guest's own: QEMU runs in namespaces in which nothing but the emulated Compute Engine answers.

User-mode networking lets a guest reach whatever its host reaches, the host's own loopback included. In a network
namespace that holds a loopback and the metadata server's address alone, a guest reaches only that: at its real
address and port, by DNS too, without root, without a port of the host, and nobody else on the host reaches the servers.

The namespaces are made by unshare(1), which runs this very file as a program in them; it hands listening sockets
back (SCM_RIGHTS: a socket stays in the namespace that it was made in) and becomes QEMU. Only the standard library, so
that it starts in isolation. Sources: user_namespaces(7), network_namespaces(7), netdevice(7), prctl(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

METADATA_ADDRESS = "169.254.169.254"
"""Of the metadata server, which is the name server too ("About VM metadata", Compute Engine)."""

HTTP_PORT, DNS_PORT = 80, 53

RESOLVER = "/etc/resolv.conf"
"""Where QEMU looks up whom to ask for the guest; what the host has there is covered, and so must be there."""

GUEST_PORT = 22000
"""Where in the namespace QEMU forwards to the guest's SSH."""

CONNECTIONS = 64
"""Sockets in the namespace, not yet connected, that are handed out for connections to the guest."""

_SIOCSIFFLAGS, _SIOCSIFADDR = 0x8914, 0x8916
_IFF_UP, _IFF_RUNNING = 0x1, 0x40
_PR_SET_PDEATHSIG = 1
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000


@dataclass
class Enclosure:
    """A program running in namespaces of its own, and the sockets that lead there.

    Attributes:
        process: what runs there.
        http: listens on TCP port 80 of the metadata server's address.
        dns: bound to UDP port 53 of it; ``dns_stream`` listens on TCP port 53.
        connections: TCP sockets that can still be connected to addresses in there.
    """

    process: subprocess.Popen[bytes]
    http: socket.socket
    dns: socket.socket
    dns_stream: socket.socket
    connections: list[socket.socket] = field(default_factory=list)

    def close(self) -> None:
        """Kill the program and close the sockets."""
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for each in (self.http, self.dns, self.dns_stream, *self.connections):
            each.close()


class EnclosureError(Exception):
    """Namespaces cannot be made here; the message says why."""


@contextlib.contextmanager
def enclosed(
    command: Sequence[str],
    *,
    environment: Mapping[str, str],
    descriptors: Sequence[int],
    output: int,
    folder: Path,
    timeout: float = 30,
) -> Iterator[Enclosure]:
    """Run a program in a network of its own; it is killed when the block ends, or when this process does.

    Call it from a thread that lives as long as the program is to: the kernel kills it when that thread ends.

    Args:
        command: the program and its arguments.
        environment: all of its environment.
        descriptors: what it inherits beside the standard streams.
        output: descriptor of where its standard output and error go.
        folder: an existing one, where a file is put that must be there until the namespaces are.
        timeout: seconds until the namespaces must be there.

    Raises:
        EnclosureError: the namespaces cannot be made.
    """
    resolver = folder / "resolv.conf"
    resolver.write_text(f"nameserver {METADATA_ADDRESS}\n")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        helper = [sys.executable, "-I", "-S", __file__]
        process = subprocess.Popen(
            [*_unshare(), *helper, str(theirs.fileno()), str(os.getpid()), os.fspath(resolver), *command],
            env=dict(environment),
            pass_fds=(*descriptors, theirs.fileno()),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        theirs.close()
        ours.settimeout(timeout)
        try:
            found = _receive(ours)
        except BaseException:
            process.kill()
            process.wait()
            raise
    enclosure = Enclosure(process, found[0], found[1], found[2], found[3:])
    try:
        yield enclosure
    finally:
        enclosure.close()


def _unshare() -> list[str]:
    """How the namespaces are made: root needs no user namespace, which may be forbidden in a container."""
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *user, "--net", "--mount", "--"]


def _receive(channel: socket.socket) -> list[socket.socket]:
    try:
        data, descriptors, _, _ = socket.recv_fds(channel, 4096, CONNECTIONS + 3)
    except OSError as error:
        raise EnclosureError(f"the namespaces were not there in time ({error})") from None
    if data != b"ready" or len(descriptors) < 3:
        for descriptor in descriptors:
            os.close(descriptor)
        raise EnclosureError(data.decode("utf-8", "replace") or "unshare(1) failed")
    return [socket.socket(fileno=descriptor) for descriptor in descriptors]


def _enter(channel: socket.socket, parent: int, resolver: str) -> None:
    """In the namespaces: die with the parent, have the addresses and the resolver, hand the sockets over."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise OSError("the parent has ended")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for name, address in (("lo", "127.0.0.1"), ("lo:1", METADATA_ADDRESS)):
            _configure(control, name, address)
    _replace_resolver(libc, resolver)
    sockets = [
        socket.create_server((METADATA_ADDRESS, HTTP_PORT)),
        _bound(socket.SOCK_DGRAM, DNS_PORT),
        socket.create_server((METADATA_ADDRESS, DNS_PORT)),
        *(socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(CONNECTIONS)),
    ]
    socket.send_fds(channel, [b"ready"], [each.fileno() for each in sockets])


def _configure(control: socket.socket, name: str, address: str) -> None:
    """Give an interface an address and start it (netdevice(7))."""
    encoded = struct.pack("16sHH4s8x", name.encode(), socket.AF_INET, 0, socket.inet_aton(address))
    fcntl.ioctl(control, _SIOCSIFADDR, encoded)
    fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", name.encode(), _IFF_UP | _IFF_RUNNING))


def _replace_resolver(libc: ctypes.CDLL, resolver: str) -> None:
    """Lay a resolv.conf of our own over that of the host, which QEMU asks for the guest's names."""
    if libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None):
        raise OSError(ctypes.get_errno(), "mount namespace cannot be made private")
    if libc.mount(os.fsencode(resolver), os.fsencode(RESOLVER), None, _MS_BIND, None):
        raise OSError(ctypes.get_errno(), f"{RESOLVER} cannot be covered")


def _bound(kind: int, port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, kind)
    bound.bind((METADATA_ADDRESS, port))
    return bound


def main(arguments: Sequence[str]) -> None:
    """Set the namespaces up and become a program: channel's descriptor, parent's pid, resolv.conf, command."""
    channel = socket.socket(fileno=int(arguments[0]))
    try:
        _enter(channel, int(arguments[1]), arguments[2])
    except OSError as error:
        channel.sendall(f"{error.strerror or error}".encode())
        raise SystemExit(1) from None
    channel.close()
    os.execvpe(arguments[3], list(arguments[3:]), os.environ)  # noqa: S606 - there is no shell in it


if __name__ == "__main__":
    main(sys.argv[1:])
