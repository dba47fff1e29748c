"""What an installed agent leaves for those who look later: where it is, which image it is of, how it last ended."""

from __future__ import annotations

from typing import NamedTuple

from tpu_image.trees.base import NotFoundError, Tree

AGENTS = "/usr/lib/tpu-image/agents"
"""Where unpacked agents and archives of their images are. Root alone may enter it, as with /var/lib/docker: owners and
setuid programs of an image are none of the machine's."""

RECORD_LIMIT = 64 * 1024
EXITS_LIMIT = 256 * 1024

SCHEMA = "tpu-image/agent/1"
"""Name of the record's shape: the number grows when a reader of the old shape could be misled."""


def record_path(program: str) -> str:
    """Where it stands which image an agent is of; everybody may read it."""
    return f"/usr/lib/tpu-image/{program}.json"


def exits_path(program: str) -> str:
    """Where our unit notes each end of the agent since boot, a line each."""
    return f"/run/tpu-image/{program}.exits"


class Record(NamedTuple):
    """Which image an agent was installed from, and what runs it."""

    reference: str
    digest: str
    runtime: str


class Exit(NamedTuple):
    """How a service ended: ``$SERVICE_RESULT``, ``$EXIT_CODE`` and ``$EXIT_STATUS`` of systemd.exec(5)."""

    result: str
    code: str
    status: str

    @property
    def failed(self) -> bool:
        """Whether nobody asked for it."""
        return self.result != "success"

    def __str__(self) -> str:
        if self.code == "exited":
            return f"exit status {self.status}"
        if self.code in ("killed", "dumped"):
            return f"signal {self.status}" + (" with a core dump" if self.code == "dumped" else "")
        return self.result


def record(tree: Tree, program: str) -> Record | None:
    """Read which image an agent is of; None where nothing readable says so."""
    import json

    try:
        found = json.loads(tree.read_bytes(record_path(program), RECORD_LIMIT))
    except (NotFoundError, ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        return None
    return Record(*(str(found.get(key) or "") for key in ("reference", "digest", "runtime")))


def exits(tree: Tree, program: str) -> list[Exit]:
    """Read how the agent ended since boot, the last one last."""
    try:
        text = tree.read_text(exits_path(program), EXITS_LIMIT)
    except NotFoundError:
        return []
    lines = [line.split() for line in text.splitlines()]
    return [Exit(*words) for words in lines if len(words) == 3]
