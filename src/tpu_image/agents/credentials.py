"""The token of a Google virtual machine's service account, as a file of credentials that only a child can read.

Source: Compute Engine, "Authenticate applications directly with access tokens"; Artifact Registry, "Access token": the
user is ``oauth2accesstoken``.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import urllib.error
import urllib.request

ADDRESS = "metadata.google.internal"
SECONDS = 3.0
"""Seconds that the metadata server may take; it is beside the machine."""

_LIMIT = 64 * 1024
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,16384}")


def machine_token() -> str:
    """Ask the metadata server for a token; empty where there is no such server or no account.

    ``GCE_METADATA_HOST`` names another server, as Google's own libraries have it.
    """
    host = os.environ.get("GCE_METADATA_HOST") or ADDRESS
    request = urllib.request.Request(
        f"http://{host}/computeMetadata/v1/instance/service-accounts/default/token",
        headers={"Metadata-Flavor": "Google"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=SECONDS) as answer:
            document = json.loads(answer.read(_LIMIT))
    except (OSError, http.client.HTTPException, ValueError, RecursionError):
        return ""
    token = document.get("access_token") if isinstance(document, dict) else None
    return token if isinstance(token, str) and _TOKEN.fullmatch(token) else ""


def in_memory_file(host: str, token: str) -> int:
    """Put a token into a file of credentials that is nowhere but in memory; give its descriptor."""
    secret = base64.b64encode(f"oauth2accesstoken:{token}".encode()).decode()
    descriptor = os.memfd_create("credentials", os.MFD_CLOEXEC)
    os.write(descriptor, json.dumps({"auths": {host: {"auth": secret}}}).encode())
    return descriptor
