"""Programs that end with the process that started them, also where that is killed.

Sources: setpriv(1), ``PR_SET_PDEATHSIG`` in prctl(2).
"""

from __future__ import annotations

import errno
import os
import shutil


def ends_with_us(signal: str = "KILL") -> list[str]:
    """Give what to put before a program and its arguments, so that the kernel sends it a signal when we end.

    It follows the thread that starts the program, which must live as long as the program is to.

    Raises:
        FileNotFoundError: setpriv is not installed; the message says what to install.
    """
    # A user's own path need not name the folders of the system.
    setpriv = shutil.which("setpriv", path=f"{os.environ.get('PATH', '')}:{os.defpath}")
    if setpriv is None:
        raise FileNotFoundError(errno.ENOENT, "is not installed; install the package util-linux", "setpriv")
    return [setpriv, "--pdeathsig", signal, "--"]
