"""The last gate of a build: the finished image boots in the lab before it gets its name."""

from __future__ import annotations

from pathlib import Path

from tpu_image.build import RefusedError
from tpu_image.catalogue.requirement import Profile
from tpu_image.cli.boot import status
from tpu_image.lab import chips
from tpu_image.lab.boot import Request, boot
from tpu_image.progress import Progress
from tpu_image.report.boot import render


class BootGate:
    """Boots an image with a chip of each generation that it is made for."""

    def __init__(self, profile: Profile, output: Path, progress: Progress) -> None:
        self._profile = profile
        self._output = output
        self._progress = progress

    def __call__(self, image: Path) -> None:
        """Boot it.

        Raises:
            RefusedError: it did not come up, or a requirement fails inside.
            LabError: nothing can be booted here.
        """
        wanted = chips.parse(",".join(f"{generation.name}:1" for generation in self._profile.generations))
        request = Request(image, wanted, self._profile, name=str(self._output))
        result = boot(request, self._progress)
        if not result.ok:
            raise RefusedError(
                "it does not hold when it is booted",
                render(result, "text", color=False, quiet=False),
                status(result),
            )
