"""Paths, names and values of the boot tasks, each known here and nowhere else.

Sources: the document, sections "Configura le variabili di ambiente" and "Aumenta i timeout di Cloud Storage".
"""

from __future__ import annotations

ARCHIVE_PATH = "/usr/lib/tpu-image/runtime.pyz"
"""Where this package lies on an image, packed as a zipapp."""

INTERPRETER = "/usr/bin/python3"
"""What the boot tasks are run with, and the document's value of CLOUDSDK_PYTHON."""

ATTRIBUTE = "tpu-env"
"""The attribute of the instance that holds the settings of the TPU, as YAML."""

USER = "tpu-runtime"
"""Owner of the directory and of the file, as on Google's own images."""

USER_ID = 2000
"""The user's id, unless another user has it already."""

DIRECTORY = "/home/tpu-runtime"
FILE_NAME = "tpu-env"
ENVIRONMENT_PATH = f"{DIRECTORY}/{FILE_NAME}"
"""Where the settings are found by shells, services and the TPU software."""

SYSTEM_ENVIRONMENT_PATH = "/etc/environment"
"""What pam_env gives to every login."""

KNOWN_ENVIRONMENT_PATH = "/usr/lib/tpu-image/environment"
"""A copy of :data:`SYSTEM_ENVIRONMENT_PATH` as it was made right: while they are the same, a boot has nothing to do."""

CLOUDSDK_PYTHON = "CLOUDSDK_PYTHON"
"""Names the Python that the gcloud CLI runs with."""

STORAGE_TIMEOUTS = {
    "GCS_RESOLVE_REFRESH_SECS": 60,
    "GCS_REQUEST_CONNECTION_TIMEOUT_SECS": 300,
    "GCS_METADATA_REQUEST_TIMEOUT_SECS": 300,
    "GCS_READ_REQUEST_TIMEOUT_SECS": 300,
    "GCS_WRITE_REQUEST_TIMEOUT_SECS": 600,
}
"""Seconds by variable, read by the Cloud Storage client of TensorFlow."""
