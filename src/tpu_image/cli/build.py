"""``tpu-image build``: a base image in, a TPU image out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tpu_image.build import FORMATS, Built, Gate, RefusedError, Request, build, default_time
from tpu_image.catalogue.requirement import Profile, Status
from tpu_image.cli import NOT_OK, OK, UNUSABLE, options, progress
from tpu_image.cli.agent_options import AgentChoice, agent_options
from tpu_image.cli.base import base_option, complete_base, open_base
from tpu_image.cli.failures import UnusableError
from tpu_image.cli.failures import report as tell
from tpu_image.cli.wanted import Wanted, agents_of, customisation_of
from tpu_image.customise.executors import NAMES as EXECUTORS
from tpu_image.customise.session import CustomisationError
from tpu_image.disks.seal import parse_size
from tpu_image.manifest import documents
from tpu_image.output import emit
from tpu_image.progress import Progress
from tpu_image.report.printable import printable
from tpu_image.sbom import path_of

if TYPE_CHECKING:
    from tpu_image.spec import Specification

SHOWN = (Status.FAIL, Status.UNKNOWN)


@click.command(
    "build",
    short_help="Turn BASE into a TPU image, checked, in one pass.",
    epilog=options.examples(
        "tpu-image build base.qcow2 -o tpu.tar.gz              for Compute Engine, with Google's agent",
        "tpu-image build base.qcow2 -o tpu.qcow2 --no-agent    for QEMU, without",
        "tpu-image build debian:trixie -o tpu.tar.gz           of a base made here",
        "tpu-image build --spec tpu-image.yaml                 as a file says",
        "SOURCE_DATE_EPOCH=0 tpu-image build base.raw -o tpu.tar.gz --tpu v6e",
    ),
)
@click.argument("base", metavar="[BASE]", required=False, callback=base_option, shell_complete=complete_base)
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The image to write; OUT.json beside it says what was done.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="gce: a .tar.gz that Compute Engine imports; raw: a plain sparse disk; qcow2: compressed, for QEMU."
    "  [default: by OUT's name]",
)
@click.option(
    "--size",
    metavar="SIZE",
    callback=lambda _context, _option, value: disk_size(value),
    help="Grow the disk and its root file system, such as 20G.",
)
@click.option(
    "--keep-identity", is_flag=True, help="Leave machine-id, host keys and the like where they are."
)
@click.option("--force", is_flag=True, help="Write the image though a requirement does not hold.")
@click.option(
    "--sbom",
    metavar="FORMAT|FILE",
    help="Also write a software bill of materials: spdx or cyclonedx, beside the image, or a file named *.spdx.json"
    " or *.cdx.json.",
)
@click.option(
    "--boot",
    "booted",
    is_flag=True,
    help="Boot the image in the lab before it gets its name (tpu-image boot).",
)
@click.option(
    "--run-in",
    type=click.Choice(EXECUTORS),
    help="Where a specification's packages and programs run: apart, on this machine's kernel, which needs root; or in"
    " QEMU, on the image's own.  [default: namespace for root, virtual-machine for others]",
)
@agent_options(("Google's", "Docker where the base starts it, else systemd"))
@progress.option
@options.specification_options
@options.quiet_option
@options.debug_option
def command(
    base: str | None,
    output: Path | None,
    form: str | None,
    size: int,
    keep_identity: bool,
    force: bool,
    sbom: str | None,
    booted: bool,
    run_in: str | None,
    agents: AgentChoice,
    shown: str,
    profile: Profile,
    specification: Specification | None,
    quiet: bool,
) -> int:
    """Turn BASE into a TPU image and write it to OUT, checked, in one pass.

    BASE is a disk image: qcow2, raw, or Compute Engine's .tar.gz. It is only read. Neither root nor a mount is
    needed, and nothing inside the image is executed unless a specification asks for packages or programs. BASE may
    be a URL (http, https, gs; with #sha256=... it is verified), or debian:bookworm (the default), debian:trixie,
    ubuntu:22.04, ubuntu:24.04, of which a base is made with mmdebstrap; both are kept in the cache.
    """
    wanted = Wanted.of(base, output, form, size, specification)
    began = time.monotonic()
    try:
        with progress.display(shown, quiet=quiet) as display:
            request = Request(
                open_base(wanted.base, display, wanted.sha256),
                wanted.output,
                profile,
                wanted.form,
                keep_identity,
                force,
                _time(),
                size=wanted.size,
                sbom=None if sbom is None else _bill(sbom, wanted.output),
                sha256=wanted.sha256,
                customisation=customisation_of(specification, display),
                agents=agents_of(agents, specification, display),
                run_in=run_in or "",
            )
            built = build(request, display, documents, _gate(request, display) if booted else None)
    except CustomisationError as error:
        told = () if shown != "none" and not quiet else error.output  # else it was shown when it was said
        for line in (*told, error.message):
            tell(line)
        return UNUSABLE
    except RefusedError as error:
        emit(error.report)
        tell(f"{wanted.output} was not written: {error}")
        return error.status
    return _tell(request, built, time.monotonic() - began, quiet=quiet)


def _tell(request: Request, built: Built, seconds: float, *, quiet: bool) -> int:
    """Say what came of it; gives the exit status."""
    if not quiet:
        emit("".join(f"{line}\n" for line in done(built)))
    for verdict in built.verdicts:
        if verdict.status in SHOWN:
            tell(f"{verdict.status.value}: {verdict.requirement}: {verdict.message}; {verdict.remedy}")
    if built.archive is None:
        tell(
            f"{request.output} was not written, since the image does not hold (--force writes it all the same)"
        )
        return NOT_OK
    if not quiet:
        emit(summary(request, built, seconds))
    return OK if built.holds else NOT_OK


def _gate(request: Request, display: Progress) -> Gate:
    from tpu_image.cli.boot_gate import BootGate

    return BootGate(request.profile, request.output, display)


def _bill(given: str, image: Path) -> Path:
    try:
        return path_of(given, image)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--sbom'") from None


def _time() -> int:
    try:
        return default_time()
    except ValueError as error:
        raise UnusableError(str(error)) from None


def done(built: Built) -> Iterator[str]:
    """Say what was changed, a line each."""
    yield from built.placed
    for package in built.executed.packages:
        yield f"package {package.name} {package.before or 'absent'} -> {package.after or 'absent'}"
    for script in built.executed.scripts:
        yield f"ran {printable(script.name)}"
    for change in built.changes:
        yield str(change)
    for agent in built.agents:
        yield f"install {agent.name} of {printable(agent.reference)} {agent.digest}".rstrip()
        yield from (f"left out of {agent.name}: {printable(line)}" for line in agent.left_out)


def disk_size(text: str | None) -> int:
    """Read what ``--size`` was given, in bytes; 0 where it was not."""
    try:
        return 0 if text is None else parse_size(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def summary(request: Request, built: Built, seconds: float) -> str:
    """Say what was written and how to go on."""
    archive = built.archive
    if archive is None:
        return ""
    counts = ", ".join(
        f"{n} {status.value}" for status in Status if (n := sum(v.status is status for v in built.verdicts))
    )
    name = printable(str(request.output))
    lines = [
        f"{name}: {archive.size >> 20} MiB for a disk of {built.disk_size >> 30} GiB, in {seconds:.1f} s",
        f"checked: {counts}",
    ]
    if request.sbom is not None:
        lines.append(f"bill of materials: {printable(str(request.sbom))}, {len(built.packages)} packages")
    if request.form == "gce":
        lines.append(
            f"next: gcloud storage cp {name} gs://BUCKET/ && gcloud compute images create NAME "
            f"--source-uri=gs://BUCKET/{printable(request.output.name)} "
            "--guest-os-features=UEFI_COMPATIBLE,GVNIC,VIRTIO_SCSI_MULTIQUEUE"
        )
    return "".join(f"{line}\n" for line in lines)
