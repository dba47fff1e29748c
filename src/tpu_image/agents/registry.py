"""Getting an image from a registry into a cache of this machine, through skopeo.

The cache holds one OCI layout for each digest. What skopeo brings is used only as far as it is what the registry's own
manifest, itself held against the digest, says; so a damaged cache is found out and pulled again.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tpu_image.agents import credentials, manifest, skopeo
from tpu_image.agents.errors import AgentError, ImageError
from tpu_image.agents.image import BLOB_LIMIT, ContainerImage, OnProgress, blob_name, read_layout
from tpu_image.agents.references import Reference
from tpu_image.agents.skopeo import SkopeoError
from tpu_image.agents.stores import DOCUMENT_LIMIT, DirectoryStore
from tpu_image.cache_folder import subfolder
from tpu_image.downloads.cache import lock, names

QUESTION_SECONDS = 180
"""Seconds that a manifest may take; skopeo itself waits as long as a registry asks for, some times."""

STALL_SECONDS = 90
"""Seconds without a byte after which a pull is given up and tried again."""

PULL_SECONDS = 3600
"""Seconds that a pull may take."""

PAUSES = (1.0, 3.0)
"""Seconds before each further try."""

CACHE_LIMIT = 6
"""Images that stay in the cache, the latest used."""

T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """How registries are asked.

    Attributes:
        cache: folder that keeps images; that of the user where None.
        authfile: credentials as skopeo, Docker and podman keep them; their own files where None.
        progress: is told how far it is.
    """

    cache: Path | None = None
    authfile: Path | None = None
    progress: OnProgress | None = None


def pull(reference: Reference, options: Options) -> ContainerImage:
    """Get an image; one that is in the cache by its digest is not asked for again.

    Raises:
        AgentError: the registry cannot be reached, refuses or has no such image, or skopeo is missing.
        ImageError: what it gave is not what it says.
        CacheError: the cache cannot be used.
    """
    cache = options.cache or subfolder("containers")
    client = _Client(reference, options)
    if reference.digest and (held := _held(cache, reference, reference.digest)):
        return held
    # skopeo takes no name with both a tag and a digest.
    top = client.raw(reference.pinned(reference.digest) if reference.digest else str(reference))
    digest = manifest.digest_of(top)
    if reference.digest and digest != reference.digest:
        raise ImageError(f"the registry gives {digest} for it", str(reference))
    with _locked(cache, digest) as folder:
        held = _held(cache, reference, digest)
        if held is None:
            client.fill(folder, top, digest)
            _prune(cache)
            held = _held(cache, reference, digest)
        if held is None:
            raise ImageError("the registry sent something else than the image says", str(reference))
        return held


def _prune(cache: Path) -> None:
    """Let go of what was not used for longest; half-brought images count too."""
    folders = sorted(
        (p for p in cache.iterdir() if p.is_dir()), key=lambda p: p.stat().st_mtime, reverse=True
    )
    for folder in folders[CACHE_LIMIT:]:
        shutil.rmtree(folder, ignore_errors=True)


def _layout(cache: Path, digest: str) -> Path:
    return cache / digest.partition(":")[2]


def _held(cache: Path, reference: Reference, digest: str) -> ContainerImage | None:
    """Give an image of the cache, its blobs verified; None where it is not there or not whole."""
    folder = _layout(cache, digest)
    if not (folder / "index.json").is_file():
        return None
    store = DirectoryStore(folder)
    store.where = str(reference)
    try:
        image = read_layout(store, digest)
        for layer in image.layers:
            for _ in image.blob(layer):
                pass
    except ImageError:
        store.close()
        shutil.rmtree(folder, ignore_errors=True)
        return None
    with contextlib.suppress(OSError):
        os.utime(folder)
    # The registry's digest is that of the index where there is one, and is what the image is known by.
    return ContainerImage(
        str(reference), digest, image.identity, image.configuration, image.document, image.layers, store
    )


@contextlib.contextmanager
def _locked(cache: Path, digest: str) -> Iterator[Path]:
    """Give the folder that an image is brought into, to one process at a time; a killed one's work goes on."""
    try:
        descriptor = _locked_folder(cache)
        try:
            yield cache / f"{digest.partition(':')[2]}.partial"
        finally:
            os.close(descriptor)
    except OSError as error:
        where = error.filename or str(cache)
        raise AgentError(
            f"cannot be written: {error.strerror}", str(where), "make room, or set XDG_CACHE_HOME"
        ) from error


def _locked_folder(folder: Path) -> int:
    """Lock the folder itself, as what cleans the cache does (:func:`tpu_image.downloads.cache.remove`)."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        lock(descriptor)
        if names(folder, descriptor):
            return descriptor
        os.close(descriptor)  # it was removed while this waited


class _Client:
    """Asks one registry, with a machine's token where that is what it takes."""

    def __init__(self, reference: Reference, options: Options) -> None:
        self._reference = reference
        self._options = options
        self._where = str(reference)
        self._credentials: int | None = None
        self._total = 0

    def raw(self, name: str, *options: str) -> bytes:
        """Give a manifest or index as the registry has it; with ``--config``, the configuration."""
        arguments = ["inspect", "--raw", *options, *self._access(""), f"docker://{name}"]
        return self._patiently(
            lambda: skopeo.run(
                self._with_credentials(arguments),
                self._where,
                seconds=QUESTION_SECONDS,
                limit=DOCUMENT_LIMIT,
                descriptors=self._descriptors(),
            )
        )

    def fill(self, folder: Path, top: bytes, digest: str) -> None:
        """Bring an image into a folder, which then takes its place in the cache."""
        documents = {digest: top}
        chosen = digest
        for _ in range(manifest.NESTING_LIMIT):
            document = manifest.parse(documents[chosen], self._where, "its manifest")
            if not manifest.is_index(document, self._where):
                break
            found = manifest.descriptors(document, self._where)
            chosen = manifest.for_our_platform(found, self._where)[0].digest
            documents[chosen] = self.raw(self._reference.pinned(chosen))
            if manifest.digest_of(documents[chosen]) != chosen:
                raise ImageError(f"the registry gives something else for {chosen}", self._where)
        contents = manifest.read_manifest(document, self._where)
        self._total = sum(d.size for d in (contents.configuration, *contents.layers))
        if self._total > BLOB_LIMIT:
            raise ImageError(f"has {self._total >> 20} MiB", self._where, "give another image")
        folder.mkdir(exist_ok=True)
        self._patiently(lambda: self._copy(folder, chosen))
        if not (folder / blob_name(contents.configuration.digest)).exists():
            # Of an image in Docker's own format skopeo writes the configuration anew, as OCI has it.
            documents[contents.configuration.digest] = self.raw(self._reference.pinned(chosen), "--config")
        for name, data in documents.items():
            _write(folder / blob_name(name), data)
        index = {"schemaVersion": 2, "manifests": [{"digest": digest, "size": len(top)}]}
        _write(folder / "index.json", json.dumps(index).encode())
        final = folder.with_suffix("")
        shutil.rmtree(final, ignore_errors=True)
        folder.rename(final)

    def _copy(self, folder: Path, digest: str) -> bytes:
        for leftover in folder.glob("oci-put-blob*"):
            leftover.unlink(missing_ok=True)
        (folder / "index.json").unlink(missing_ok=True)
        arguments = ["copy", "--quiet", *self._access("src-")]
        arguments += [f"docker://{self._reference.pinned(digest)}", f"oci:{folder}:image"]
        return skopeo.run(
            self._with_credentials(arguments, "src-"),
            self._where,
            seconds=PULL_SECONDS,
            stall=STALL_SECONDS,
            watch=lambda: self._watch(folder),
            limit=BLOB_LIMIT + DOCUMENT_LIMIT,
            descriptors=self._descriptors(),
        )

    def _watch(self, folder: Path) -> int:
        size = skopeo.size_of(folder)
        if self._options.progress is not None:
            self._options.progress("getting the image", min(size, self._total), self._total)
        return size

    def _access(self, prefix: str) -> list[str]:
        return [f"--{prefix}tls-verify=false"] if self._reference.is_loopback else []

    def _with_credentials(self, arguments: list[str], prefix: str = "") -> list[str]:
        if self._credentials is not None:
            return [arguments[0], f"--{prefix}authfile", f"/proc/self/fd/{self._credentials}", *arguments[1:]]
        if self._options.authfile is not None:
            return [arguments[0], f"--{prefix}authfile", str(self._options.authfile), *arguments[1:]]
        return arguments

    def _descriptors(self) -> tuple[int, ...]:
        return () if self._credentials is None else (self._credentials,)

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Try again where that may help: after a pause, or with the machine's own token."""
        for pause in (*PAUSES, None):
            try:
                return ask()
            except SkopeoError as error:
                if error.refused and self._take_token():
                    return ask()
                if not error.again or pause is None:
                    raise
                time.sleep(pause)
        raise AssertionError("unreachable")

    def _take_token(self) -> bool:
        if (
            self._credentials is not None
            or self._options.authfile is not None
            or not self._reference.is_google
        ):
            return False
        token = credentials.machine_token()
        if token:
            self._credentials = credentials.in_memory_file(self._reference.host, token)
        return bool(token)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
