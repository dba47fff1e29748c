"""``tpu-image boot``: boot an image with emulated TPUs, and judge it from inside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from tpu_image.catalogue import choices
from tpu_image.catalogue.hardware import MachineType
from tpu_image.catalogue.requirement import Profile
from tpu_image.cli import NOT_OK, OK, UNUSABLE, options, progress, reports
from tpu_image.cli.failures import UnusableError
from tpu_image.lab import chips, faults, terminal
from tpu_image.lab.boot import FIRMWARE, TIMEOUT, Request, boot
from tpu_image.lab.chips import Chips
from tpu_image.lab.metadata import faults as metadata_faults
from tpu_image.lab.metadata import settings
from tpu_image.lab.result import BootResult, Outcome
from tpu_image.output import emit, require_place, wants_color
from tpu_image.report.boot import render

DEFAULT = "v6e:1"


def _fault(word: str) -> str:
    """Accept one fault.

    Raises:
        ChoiceError: there is none of that name.
    """
    for metadata in faults.parse([word]).metadata:
        metadata_faults.parse(metadata)
    return word


@click.command(
    "boot",
    short_help="Boot IMAGE with emulated TPUs, and judge it from inside.",
    epilog=options.examples(
        "tpu-image boot tpu.tar.gz --tpu v6e:4 --no-agent",
        "tpu-image boot tpu.raw --machine tpu7x-standard-4t --firmware uefi",
        "tpu-image boot tpu.tar.gz --run 'systemctl --failed' --format json -o boot.json",
        "tpu-image boot tpu.tar.gz --html boot.html",
        "tpu-image boot tpu.tar.gz --fault metadata=down:30s",
        "tpu-image boot tpu.tar.gz --shell     Ctrl-] leaves it",
    ),
)
@click.argument("image", metavar="IMAGE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--tpu",
    "asked",
    metavar="GENERATION:CHIPS",
    callback=options.reading(chips.parse),
    help=f"Emulated chips, such as v6e:4 or v5p:2,v6e:1.  [default: {DEFAULT}]",
)
@click.option(
    "--machine",
    metavar="TYPE",
    callback=options.reading(choices.machine_type),
    help="A machine type, such as ct6e-standard-4t, in place of --tpu.",
)
@click.option(
    "--firmware", type=click.Choice(FIRMWARE), default="bios", show_default=True, help="What boots the disk."
)
@click.option(
    "--metadata",
    metavar="KEY=VALUE",
    multiple=True,
    callback=options.reading(settings.attribute),
    help="An attribute of the instance; KEY=@FILE takes a file's content. May be repeated.",
)
@click.option(
    "--fault",
    metavar="FAULT",
    multiple=True,
    callback=options.reading(_fault),
    shell_complete=options.completing(
        [*faults.MEANINGS, *(f"{faults.METADATA}{kind}" for kind in metadata_faults.MEANINGS)]
    ),
    help="What goes wrong: iommu=off, device=late, or metadata=KIND, for ever, for 30 seconds (KIND:30s) or for 2"
    f" requests (KIND:2x). KIND: {', '.join(metadata_faults.MEANINGS)}. May be repeated.",
)
@click.option(
    "--run", metavar="COMMAND", multiple=True, help="Run it inside, as root, in a shell. May be repeated."
)
@click.option(
    "--boots",
    type=click.IntRange(1, 9),
    default=1,
    show_default=True,
    metavar="NUMBER",
    help="Boot so often, each time from what the boot before left; the last one is judged. --run runs in each.",
)
@click.option("--keep", is_flag=True, help="Leave the guest running after its report.")
@click.option(
    "--shell",
    is_flag=True,
    help="Have the guest's serial console here, logged in as root once it is up, without a time limit. Every key goes"
    " to the guest, Ctrl-C too. Ctrl-] (on many keyboards Ctrl-5) leaves it, and so does poweroff. It knows the size"
    " that the terminal has when it starts.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=1),
    default=TIMEOUT,
    show_default=True,
    metavar="SECONDS",
    help="How long the guest may take to report; for each boot.",
)
@click.option(
    "--ssh-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="A port of this machine that leads to the guest's SSH; 0: a free one.",
)
@options.profile_options_but_hardware
@reports.format_option
@options.output_option
@click.option(
    "--html",
    type=options.ResultPath(),
    metavar="FILE",
    help="Also write the result as an HTML page with the boot's timeline.",
)
@progress.option
@options.quiet_option
@options.color_option
@options.debug_option
def command(
    image: Path,
    asked: Chips | None,
    machine: MachineType | None,
    firmware: str,
    metadata: Sequence[tuple[str, str]],
    fault: Sequence[str],
    run: Sequence[str],
    boots: int,
    keep: bool,
    shell: bool,
    timeout: float,
    ssh_port: int | None,
    profile: Profile,
    form: str,
    output: Path | None,
    html: Path | None,
    shown: str,
    quiet: bool,
    color: str,
) -> int:
    """Boot IMAGE in QEMU as Compute Engine would, with emulated TPUs, and judge it from inside.

    IMAGE is a disk image: qcow2, raw, or Compute Engine's .tar.gz. It is only read: the guest gets a throw-away
    overlay. Neither a TPU nor root is needed; where KVM does not work a boot takes some minutes.
    """
    if shell and not terminal.is_here():
        raise UnusableError("--shell needs a terminal; commands without one: --run COMMAND")
    require_place(output, *([html] if html else []), keep=image)
    wanted = _chips(asked, machine)
    request = Request(
        image,
        wanted,
        replace(profile, generations=wanted.generations),
        firmware,
        dict(metadata),
        faults.parse(fault),
        run,
        timeout,
        keep,
        shell,
        ssh_port,
        boots,
    )
    with progress.display(shown, quiet=quiet) as display:
        if shell:
            display.log(f"the guest's serial console comes here; {terminal.LEAVE}")
        result = boot(request, display)
    colored = wants_color(color) and output is None
    if html is not None:
        emit(render(result, "html"), html)
    emit(render(result, form, color=colored, quiet=quiet), output)
    return status(result)


def _chips(asked: Chips | None, machine: MachineType | None) -> Chips:
    if machine is None:
        return asked or chips.parse(DEFAULT)
    of_machine = chips.of_machine(machine)
    if asked is not None and asked.counts != of_machine.counts:
        raise UnusableError(
            f"--machine {machine.name} has {of_machine.counts[0][1]} {machine.generation} chips: "
            "leave --tpu out"
        )
    return of_machine


def status(result: BootResult) -> int:
    """Give the exit status: a guest that did not report was no usable target."""
    if result.outcome is not Outcome.REPORTED:
        return UNUSABLE
    return OK if result.ok else NOT_OK
