"""Faults of the metadata server that a boot can be tested with: ``--fault metadata=down:30s``.

Time runs from the first request that comes, so that a slow emulator meets the same fault as a fast one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from tpu_image.catalogue.choices import ChoiceError, unknown
from tpu_image.lab.metadata.tpu_attributes import ATTRIBUTE, ATTRIBUTES

SUBJECT = "metadata"

MEANINGS: dict[str, str] = {
    "down": "the connection is reset without an answer",
    "hang": "the request is taken and never answered",
    "slow": "every answer comes late",
    "drip": "the answer comes a byte at a time and never ends",
    "drip-headers": "a header comes a byte at a time and never ends",
    "flood": "the answer never ends",
    "truncated": "the answer is shorter than announced",
    "503": "503 Service Unavailable",
    "429": "429 Too Many Requests",
    "403": "403 Forbidden",
    "html": "a page with status 200",
    "portal": "something else answers: a page without Metadata-Flavor",
    "garbage": "something answers that does not speak HTTP",
    "unset": "the TPU's attributes are not set, as on a machine without TPUs",
    "empty": "tpu-env is set to nothing",
    "malformed": "tpu-env is no YAML",
    "hostile": "tpu-env holds quotes, $(...) and the like as values",
}
"""Kinds of faults and what a guest meets."""

SLOW_SECONDS = 3.0
"""How late an answer is where nothing else is said: the boot runtime waits five seconds for one."""

LONGEST_SECONDS = 3600.0

MALFORMED = "ACCELERATOR_TYPE: 'v6e-4\nTYPE: [V6E\n\t- : {\n"
HOSTILE = """\
ACCELERATOR_TYPE: 'v6e-4'
WORKER_ID: '0'
BACKQUOTES: '`touch /run/tpu-image-executed`'
COMMAND: '$(touch /run/tpu-image-executed)'
DOLLAR: '$HOME ${PATH}'
DOUBLE: 'a "quoted" word'
HASH: 'a # b'
SEMICOLON: 'x; touch /run/tpu-image-executed'
SINGLE: 'it''s'
WINDOWS: 'C:\\new\\table'
"""
"""Values that a shell, systemd or YAML could take for more than text; ``/run/tpu-image-executed`` must not appear."""


CHANGES: Mapping[str, Mapping[str, str | None]] = {
    "unset": dict.fromkeys(ATTRIBUTES),
    "empty": {ATTRIBUTE: ""},
    "malformed": {ATTRIBUTE: MALFORMED},
    "hostile": {ATTRIBUTE: HOSTILE},
}
"""What a kind makes of the attributes of the instance: other values, or None for no such attribute."""


class Fault(NamedTuple):
    """One fault.

    Attributes:
        kind: one of :data:`MEANINGS`.
        seconds: how long it lasts, from the first request; of ``slow``, how late an answer is; None for ever.
        times: for how many requests; None where the time decides.
    """

    kind: str
    seconds: float | None = None
    times: int | None = None

    def __str__(self) -> str:
        """Write it as on the command line."""
        extent = "" if self.seconds is None else f":{self.seconds:g}s"
        return f"{SUBJECT}={self.kind}{extent if self.times is None else f':{self.times}x'}"

    @property
    def delay(self) -> float:
        """Seconds that an answer is late."""
        return SLOW_SECONDS if self.seconds is None else self.seconds

    def concerns(self, path: str) -> bool:
        """Whether a request for this path meets it: all do, or those that could show an attribute."""
        return self.kind not in CHANGES or "/attributes" in path or "recursive" in path

    def holds(self, seconds: float, requests: int) -> bool:
        """Whether it concerns a request that comes so many seconds after the first, as the so-manieth of its fault."""
        if self.times is not None:
            return requests < self.times
        return self.kind == "slow" or self.seconds is None or seconds < self.seconds


def parse(words: str) -> Fault:
    """Read ``metadata=KIND``, ``metadata=KIND:30s`` (seconds) or ``metadata=KIND:2x`` (requests).

    Raises:
        ChoiceError: it is none of these.
    """
    subject, equals, fault = words.strip().partition("=")
    if not equals or subject != SUBJECT:
        raise ChoiceError(f"{words[:80]!r} is no fault; write {SUBJECT}=KIND, such as {SUBJECT}=down:30s")
    kind, colon, extent = fault.partition(":")
    if kind not in MEANINGS:
        raise unknown("fault of the metadata server", kind[:80], list(MEANINGS))
    if not colon:
        return Fault(kind)
    match = re.fullmatch(r"(\d{1,6}(?:\.\d{1,3})?)s?|(\d{1,6})x", extent, re.ASCII)
    if match is None:
        raise ChoiceError(f"{extent[:80]!r} is no extent of {kind}; write seconds as 30s, or requests as 2x")
    if match[2]:
        return Fault(kind, times=int(match[2]))
    seconds = float(match[1])
    if seconds > LONGEST_SECONDS:
        raise ChoiceError(
            f"{extent} is too long for {kind}; give at most {LONGEST_SECONDS:g}s, or none for ever"
        )
    return Fault(kind, seconds)


def parse_all(words: Iterable[str]) -> tuple[Fault, ...]:
    """Read several; of those that hold at the same time the first is met.

    Raises:
        ChoiceError: as :func:`parse`.
    """
    return tuple(map(parse, words))
