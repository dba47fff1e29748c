"""Run by cloud-init's own Python: what the real modules do with cloud-configs given as JSON on stdin.

For each text: whether the schema objects, the exception that stops the modules, and the mode and content of
each file written below the folder that is the first argument.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import shutil
import sys
import types
from typing import Any

from cloudinit import safeyaml, util  # type: ignore[import-not-found]
from cloudinit.config import cc_write_files  # type: ignore[import-not-found]
from cloudinit.config.schema import (  # type: ignore[import-not-found]
    SchemaValidationError,
    get_schema,
    validate_cloudconfig_schema,
)

FOLDER = sys.argv[1]
logging.disable(logging.CRITICAL)
os.chdir("/")


def judge(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    text = text.replace("run/made", FOLDER[1:])
    config = safeyaml.load(text)
    verdict: dict[str, Any] = {"schema": False, "raises": "", "files": {}}
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            validate_cloudconfig_schema(config, schema, strict=True)
        except SchemaValidationError:
            verdict["schema"] = True
    try:
        write(config)
        if "runcmd" in config:
            util.shellify(config["runcmd"])
    except Exception as error:
        verdict["raises"] = type(error).__name__
    for name in os.listdir(FOLDER):
        path = os.path.join(FOLDER, name)
        with open(path, encoding="latin-1") as file:
            verdict["files"][name] = [os.stat(path).st_mode & 0o7777, file.read()]
    return verdict


def write(config: dict[str, Any]) -> None:
    cloud = types.SimpleNamespace(distro=types.SimpleNamespace(default_owner="root:root"))
    cc_write_files.handle("write_files", config, cloud, logging.getLogger(), [])


schema = get_schema()
verdicts = []
for text in json.load(sys.stdin):
    os.makedirs(FOLDER)
    verdicts.append(judge(text, schema))
    shutil.rmtree(FOLDER)
json.dump(verdicts, sys.stdout)
