"""What of a customisation needs no execution, in its order; for any user, straight onto the file systems."""

from __future__ import annotations

from collections.abc import Callable

from tpu_image.customise.customisation import Customisation
from tpu_image.customise.gcloud import unpack
from tpu_image.customise.leftovers import clear_leftovers
from tpu_image.customise.placing import place
from tpu_image.disks.edited import EditedDisk


def apply_files(
    disk: EditedDisk,
    customisation: Customisation,
    *,
    time: int,
    keep_leftovers: bool = False,
    report: Callable[[int], None] | None = None,
) -> tuple[str, ...]:
    """Clear what installing left, unless that is to be kept, then place the user's files and the Cloud CLI.

    Args:
        disk: after everything was executed; what the catalogue plans comes later and sees these files.
        customisation: what is wanted.
        time: seconds since 1970 that files carry.
        keep_leftovers: whether logs and package lists stay.
        report: is told how many bytes of the Cloud CLI are unpacked.

    Returns:
        What was done, a line each.

    Raises:
        CustomisationError: something cannot be placed; named.
        DiskError: the disk is of a form that is not written to, or has no room.
    """
    lines = () if keep_leftovers else clear_leftovers(disk, time=time)
    lines += place(disk, customisation.files, time=time)
    if customisation.gcloud:
        lines += unpack(disk, customisation.gcloud, time=time, report=report)
    return lines
