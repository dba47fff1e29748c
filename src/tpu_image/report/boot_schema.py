"""The JSON schema (draft 2020-12) of what ``tpu-image boot --format json`` prints."""

from __future__ import annotations

from typing import Any

from tpu_image.catalogue.requirement import Status
from tpu_image.lab.result import Outcome
from tpu_image.report.boot import SCHEMA
from tpu_image.report.schema import COUNT, TEXT, closed_object, profile_schema, verdict_schema

SECONDS = {"type": "number"}
MAYBE_SECONDS = {"type": ["number", "null"], "description": "Seconds; null where there is no figure."}
FLAG = {"type": "boolean"}
IDS = {"type": "integer", "minimum": 0, "maximum": 0xFFFF}
SHA256 = {"type": "string", "pattern": "^[0-9a-f]{64}$"}


def boot_schema() -> dict[str, Any]:
    """Give the schema."""
    properties = {
        "schema": {"const": SCHEMA},
        "artefact": closed_object(
            {
                "path": TEXT,
                "size": COUNT | {"description": "Bytes."},
                "sha256_before": SHA256,
                "sha256_after": {
                    "type": "string",
                    "pattern": "^([0-9a-f]{64})?$",
                    "description": "Empty where the image could no longer be read.",
                },
                "unchanged": FLAG,
            }
        ),
        "profile": profile_schema(),
        "machine": TEXT | {"description": "Chips as they were asked for."},
        "emulator": closed_object(
            {
                "version": TEXT | {"description": "Of QEMU."},
                "accelerator": {"enum": ["kvm", "tcg"]},
                "reason": TEXT,
                "firmware": {"enum": ["bios", "uefi"]},
                "cpus": COUNT,
                "memory": COUNT | {"description": "MiB."},
            }
        ),
        "outcome": {"enum": [outcome.value for outcome in Outcome]},
        "reason": TEXT | {"description": "Why the guest did not report; empty where it did."},
        "seconds": SECONDS | {"description": "From power-on to the end."},
        "ok": FLAG,
        "summary": closed_object({status.value: COUNT for status in Status}),
        "verdicts": _list(verdict_schema()),
        "guest": _guest(),
        "stages": _list(closed_object({"name": TEXT, "seconds": SECONDS})),
        "metadata": _list(
            closed_object({"seconds": SECONDS, "method": TEXT, "path": TEXT, "status": COUNT, "fault": TEXT})
        ),
        "faults": _list(TEXT),
        "console": TEXT | {"description": "The serial console, its end where it is long; lines end in \\n."},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:{SCHEMA.replace('/', ':')}",
        "title": "Result of tpu-image boot",
        "description": "Text that stems from the guest is printable: control characters stand as backslash escapes.",
        **closed_object(properties),
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _guest() -> dict[str, Any]:
    return closed_object(
        {
            "kernel": TEXT,
            "system": TEXT,
            "command_line": TEXT,
            "user": TEXT,
            "settled": FLAG,
            "devices": _list(_device()),
            "tasks": _list(
                closed_object(
                    {
                        "unit": TEXT,
                        "state": TEXT,
                        "result": TEXT,
                        "status": TEXT,
                        "started": MAYBE_SECONDS,
                        "finished": MAYBE_SECONDS,
                        "cpu": MAYBE_SECONDS,
                    }
                )
            ),
            "times": _times(),
            "failed_units": _list(TEXT),
            "kernel_warnings": _list(TEXT),
            "locked_memory": _list(closed_object({"who": TEXT, "ok": FLAG, "detail": TEXT})),
            "run": _list(
                closed_object(
                    {
                        "command": TEXT,
                        "status": {
                            "type": ["integer", "null"],
                            "description": "null: it did not end in time.",
                        },
                        "output": TEXT,
                        "seconds": SECONDS,
                    }
                )
            ),
            "faults": _list(TEXT),
        }
    )


def _device() -> dict[str, Any]:
    node = closed_object({"path": TEXT, "mode": COUNT, "uid": COUNT, "gid": COUNT})
    step = closed_object({"interface": TEXT, "name": TEXT, "ok": FLAG, "detail": TEXT})
    ids = dict.fromkeys(("vendor", "device", "subsystem_vendor", "subsystem_device"), IDS)
    return closed_object(
        {
            "address": TEXT,
            "generation": TEXT,
            **ids,
            "driver": TEXT,
            "group": TEXT,
            "nodes": _list(node),
            "steps": _list(step),
        }
    )


def _times() -> dict[str, Any]:
    phases = dict.fromkeys(("firmware", "loader", "kernel", "initrd", "userspace"), MAYBE_SECONDS)
    return closed_object(
        {
            **phases,
            "blame": _list(closed_object({"unit": TEXT, "seconds": SECONDS})),
            "critical_chain": _list(TEXT),
            "ours": MAYBE_SECONDS,
        }
    )
