"""The real pam_limits gives logins what we say, on generated files and after apply."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tpu_image.catalogue.limits import LockedMemory, OpenFiles
from tpu_image.catalogue.limits_in_effect import MEMLOCK, NOFILE, Item, Sessions
from tpu_image.catalogue.requirement import Profile, Status
from tpu_image.formats.limits import Login
from tpu_image.formats.resource_limits import UNLIMITED, Limit
from tpu_image.trees.directory import DirectoryTree
from tpu_image.trees.memory import File
from tpu_image.trees.overlay import Overlay

pytestmark = pytest.mark.real

ALICE = Login("alice", 1500, 1500, ("alice", "dev"))
ROOT = Login("root", 0, 0, ("root",))
LOGINS = (ALICE, ROOT)
RESOURCES = {"RLIMIT_MEMLOCK": MEMLOCK, "RLIMIT_NOFILE": NOFILE}

# A session in a namespace of its own, whose process 1 pam_limits reads; strace notes the limits that it
# asks for, which a container may refuse to raise.
SESSION = """
mount --make-rprivate / && mount -t proc proc "$1/proc" &&
exec strace -f -qq -o "$3" -e trace=prlimit64 -e inject=prlimit64:retval=0 chroot "$1" su "$2" -c true
"""
SET = re.compile(r"prlimit64\(0, (\w+), \{rlim_cur=(\S+), rlim_max=(\S+)\}, NULL\)")


def add_alice(root: Path) -> None:
    for name, line in (
        ("passwd", "alice:x:1500:1500::/:/bin/sh"),
        ("group", "alice:x:1500:\ndev:x:1600:alice"),
        ("shadow", "alice:*:19000:0:99999:7:::"),
    ):
        with (root / "etc" / name).open("a") as file:
            file.write(line + "\n")


def value_of(text: str) -> int:
    if text == "RLIM64_INFINITY":
        return UNLIMITED
    factors = [int(factor) for factor in text.split("*")]
    return factors[0] * (factors[1] if len(factors) > 1 else 1)


def limits_set(root: Path, login: Login) -> dict[Item, Limit]:
    """The limits that the last call of setrlimit asked for as the session of a login opened."""
    if shutil.which("strace") is None:
        pytest.fail("strace is missing: apt-get install strace")
    trace = root / "trace"
    namespaces = ["unshare", "--mount", "--pid", "--fork"]
    command = [*namespaces, "sh", "-c", SESSION, "sh", str(root), login.name, str(trace)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    calls = [match.groups() for match in SET.finditer(trace.read_text())]
    return {
        RESOURCES[name]: Limit(value_of(soft), value_of(hard))
        for name, soft, hard in calls
        if name in RESOURCES
    }


def write_limits(root: Path, choose: random.Random) -> None:
    """A limits.conf and drop-ins with lines of every kind, good and bad."""
    domains = [
        "*",
        "*",
        "alice",
        "root",
        "@dev",
        "@root",
        "1000:",
        "1501:",
        ":1500",
        "0:5",
        "@1500:",
        "@0:0",
        "%dev",
    ]
    values = ["unlimited", "64", "100000", "5000", "infinity", "-1", "x", "70k", "0100", "-"]

    def line() -> str:
        fields = [
            choose.choice(domains),
            choose.choice(["soft", "hard", "-", "SOFT", "both"]),
            choose.choice(["memlock", "nofile", "NoFile", "core"]),
            choose.choice(values),
        ]
        kept = fields if choose.random() < 0.93 else fields[: choose.choice([1, 3])]
        return (
            choose.choice(["", "\t"])
            + choose.choice([" ", "  \t"]).join(kept)
            + choose.choice(["", " # x", " y"])
        )

    folder = root / "etc/security"
    for name in ("limits.conf", "limits.d/50-a.conf", "limits.d/B.conf", "limits.d/b.conf", "limits.d/c.txt"):
        lines = [line() for _ in range(choose.randint(0, 4))]
        if choose.random() < 0.06:
            lines.append(choose.choice(["alice -", "@dev -", "root -", "* -", "1000: -", "@0: -"]))
        (folder / name).write_text("\n".join(lines) + choose.choice(["\n", ""]))


def capped(value: int, item: Item, machine: int) -> int:
    """An unlimited number of files is as many as the kernel allows."""
    return min(value, machine) if item is NOFILE else value


def test_pam_limits_merges_files_as_we_do(debian_root: Path) -> None:
    add_alice(debian_root)
    most_files = int(Path("/proc/sys/fs/nr_open").read_text())
    for seed in range(40):
        write_limits(debian_root, random.Random(seed))
        sessions = Sessions(DirectoryTree(str(debian_root)))
        for login in LOGINS:
            real = limits_set(debian_root, login)
            for item in RESOURCES.values():
                ours = sessions.granted(login, item)
                where = f"seed {seed}, {login.name}, {item.name}"
                if ours.freed_by:
                    assert MEMLOCK not in real, where
                    continue
                if ours.hard:
                    assert real[item].hard == capped(ours.hard.value, item, most_files), where
                if ours.soft:
                    soft = capped(ours.soft.value, item, most_files)
                    assert real[item].soft == min(soft, real[item].hard), where


def test_logins_get_what_a_tpu_needs_after_apply(debian_root: Path) -> None:
    add_alice(debian_root)
    before = {login.name: limits_set(debian_root, login) for login in LOGINS}
    assert not any(item.suffices(limits[item]) for limits in before.values() for item in (MEMLOCK, NOFILE))
    tree = DirectoryTree(str(debian_root))
    requirements = (LockedMemory(), OpenFiles())
    assert {r.inspect(tree, Profile()).status for r in requirements} == {Status.FAIL}

    overlay = Overlay(tree)
    for requirement in requirements:
        requirement.plan(overlay, Profile())
    for path, node in overlay.written.items():
        if isinstance(node, File):
            (debian_root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
            (debian_root / path[1:]).write_bytes(node.content)

    changed = DirectoryTree(str(debian_root))
    assert {r.inspect(changed, Profile()).status for r in requirements} == {Status.PASS}
    for login in LOGINS:
        limits = limits_set(debian_root, login)
        assert limits[MEMLOCK] == Limit(UNLIMITED, UNLIMITED)
        assert limits[NOFILE].soft == min(100_000, limits[NOFILE].hard)
    command = ["systemd-analyze", f"--root={debian_root}", "cat-config", "systemd/system.conf"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown.rstrip().endswith("DefaultLimitMEMLOCK=infinity\nDefaultLimitNOFILE=100000:524288")
