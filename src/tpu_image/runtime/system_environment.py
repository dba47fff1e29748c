"""``/etc/environment``: the Python of the gcloud CLI and the time-outs of Cloud Storage.

The document appends its lines at every boot, so that its values win over a user's. Here a value that serves the
purpose stays: any CLOUDSDK_PYTHON (the document keeps that one too), and any time-out that is as long or longer.
A shorter one, or what is no number, becomes the document's.
"""

from __future__ import annotations

from collections.abc import Callable

from tpu_image.formats import FormatError, pam_environment
from tpu_image.runtime import atomic_file, settings

SIZE_LIMIT = 1024 * 1024
"""Bytes of the file that are read at most."""


def with_cloudsdk_python(text: str) -> str:
    """Have CLOUDSDK_PYTHON set.

    Raises:
        FormatError: pam_env cannot read the text.
    """
    current = pam_environment.effective(text, settings.CLOUDSDK_PYTHON)
    if current is not None and (current.value or "").strip():
        return text
    return pam_environment.set_value(text, settings.CLOUDSDK_PYTHON, settings.INTERPRETER)


def with_storage_timeouts(text: str) -> str:
    """Have every Cloud Storage time-out at least as long as the document's.

    Raises:
        FormatError: pam_env cannot read the text.
    """
    for name, seconds in settings.STORAGE_TIMEOUTS.items():
        current = pam_environment.effective(text, name)
        if current is None or not is_long_enough(current.value or "", seconds):
            text = pam_environment.set_value(text, name, str(seconds))
    return text


def is_long_enough(value: str, seconds: int) -> bool:
    """Whether a value is a whole number of at least so many seconds."""
    digits = value.strip()
    return digits.isascii() and digits.isdecimal() and len(digits) <= 18 and int(digits) >= seconds


TASKS = {
    "cloudsdk-python": (with_cloudsdk_python,),
    "storage-timeouts": (with_storage_timeouts,),
    "system-environment": (with_cloudsdk_python, with_storage_timeouts),
}
"""What each of the runtime's tasks corrects."""


def update(*corrections: Callable[[str], str], path: str = settings.SYSTEM_ENVIRONMENT_PATH) -> bool:
    """Apply corrections to the file; give whether that changed it.

    Raises:
        FormatError: pam_env cannot read it; it is as it was.
        OSError: it could not be read or written; it is as it was.
    """
    try:
        with open(path, "rb") as file:
            before = file.read(SIZE_LIMIT + 1)
    except FileNotFoundError:
        before = b""
    if len(before) > SIZE_LIMIT:
        raise FormatError(f"is larger than {SIZE_LIMIT} bytes")
    text = before.decode("utf-8", "surrogateescape")
    for correction in corrections:
        text = correction(text)
    after = text.encode("utf-8", "surrogateescape")
    if after == before:
        return False
    atomic_file.replace(path, after)
    return True
