"""The command line: parse, call, print. Here every exception becomes one line and an exit status."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import NoReturn

OK = 0
NOT_OK = 1
UNUSABLE = 2
INTERRUPTED = 130

COLLECT_AFTER = 100_000
"""Objects made between two looks for garbage: what is loaded and read stays, and looking at it again costs a tenth."""


def run() -> NoReturn:
    """Run the command line of this process, and end it."""
    gc.set_threshold(COLLECT_AFTER)
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Run a command line and give its exit status; nothing is raised unless it says ``--debug``."""
    from tpu_image.cli import failures
    from tpu_image.cli.settings import Settings

    settings = Settings()
    try:
        from tpu_image.cli.group import tpu_image

        result = tpu_image.main(list(arguments), prog_name="tpu-image", standalone_mode=False, obj=settings)
        return result if isinstance(result, int) else OK
    except (Exception, KeyboardInterrupt) as error:
        if settings.debug:
            raise
        return failures.explain(error)
