"""limits.memlock and limits.nofile: what is in effect decides, and apply makes it so without losing anything."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tpu_image.catalogue.limits import LockedMemory, OpenFiles, ResourceLimit
from tpu_image.catalogue.limits_in_effect import (
    LIMITS_CONF,
    LIMITS_DIRECTORY,
    MEMLOCK,
    NOFILE,
    Sessions,
)
from tpu_image.catalogue.requirement import Profile, Status, Verdict
from tpu_image.formats.limits import Login
from tpu_image.trees.memory import File, MemoryTree, Node, Symlink
from tpu_image.trees.overlay import Overlay

PROFILE = Profile()
PAM = "session required pam_limits.so\n"
GOOD = "* - memlock unlimited\nroot - memlock unlimited\n"
SERVICES = "/etc/systemd/system.conf.d/50.conf"
GOOD_SERVICES = "[Manager]\nDefaultLimitMEMLOCK=infinity\n"
DOCKER = "/usr/lib/systemd/system/docker.service"

Files = Mapping[str, str]
DEBIAN: Files = {
    "/etc/os-release": "ID=debian\n",
    "/etc/pam.d/sshd": PAM,
    "/etc/pam.d/login": PAM,
    "/usr/sbin/sshd": "",
    "/etc/ssh/sshd_config": "UsePAM yes\n",
    LIMITS_CONF: GOOD,
    SERVICES: GOOD_SERVICES,
}


def tree_of(files: Files) -> MemoryTree:
    nodes: dict[str, Node] = {}
    for path, text in files.items():
        nodes[path] = (
            Symlink(text[3:]) if text.startswith("-> ") else File(text.encode("utf-8", "surrogateescape"))
        )
    return MemoryTree(nodes)


def memlock(changes: Files) -> Verdict:
    return LockedMemory().inspect(tree_of({**DEBIAN, **changes}), PROFILE)


def test_it_holds_when_users_root_and_services_have_it() -> None:
    verdict = memlock({})
    assert verdict.status is Status.PASS
    assert {(e.path, e.line) for e in verdict.evidence} == {(LIMITS_CONF, 1), (LIMITS_CONF, 2), (SERVICES, 2)}


@pytest.mark.parametrize(
    ("changes", "mention"),
    [
        ({LIMITS_CONF: ""}, "ordinary users is 64 MiB"),
        ({LIMITS_CONF: "* soft memlock unlimited\nroot - memlock unlimited\n"}, "ordinary users"),
        ({LIMITS_CONF: "* hard memlock unlimited\nroot - memlock unlimited\n"}, "ordinary users"),
        ({f"{LIMITS_DIRECTORY}/a.conf": "* - memlock 64"}, f"64 KiB ({LIMITS_DIRECTORY}/a.conf:1)"),
        ({f"{LIMITS_DIRECTORY}/a.conf": "1000: - memlock 64"}, "64 KiB"),
        ({f"{LIMITS_DIRECTORY}/a.conf": "1000: -"}, f"{LIMITS_DIRECTORY}/a.conf:1 frees them"),
        ({"/etc/pam.d/sshd": "", "/etc/pam.d/login": "auth required pam_limits.so\n"}, "login, sshd"),
        (
            {
                "/etc/pam.d/sshd": "@include loop\n",
                "/etc/pam.d/loop": "@include loop\n",
                "/etc/pam.d/login": "",
            },
            "sshd",
        ),
    ],
)
def test_it_fails_when_ordinary_users_do_not_get_it(changes: Files, mention: str) -> None:
    verdict = memlock(changes)
    assert verdict.status is Status.FAIL
    assert mention in verdict.message


@pytest.mark.parametrize(
    ("changes", "mention"),
    [
        ({LIMITS_CONF: "* - memlock unlimited\n"}, "root is 64 MiB"),
        ({LIMITS_CONF: GOOD + "alice hard memlock 64\n"}, "alice is 64 KiB"),
        ({LIMITS_CONF: GOOD + "@dev hard memlock 64\n"}, "@dev is 64 KiB"),
        ({LIMITS_CONF: GOOD + "2000: soft memlock 64\n"}, "2000: is 64 KiB soft, unlimited hard"),
        ({LIMITS_CONF: GOOD + "alice -\n"}, "alice"),
        ({SERVICES: "[Manager]\nDefaultLimitMEMLOCK=64M\n"}, f"64 MiB ({SERVICES}:2)"),
        ({SERVICES: "[Manager]\n"}, "services is 8 MiB by default"),
        ({"/usr/lib/systemd/system/service.d/a.conf": "[Service]\nLimitMEMLOCK=64K\n"}, "service.d/a.conf:2"),
        ({"/etc/pam.d/sshd": ""}, "sessions of sshd do not call pam_limits"),
        ({"/etc/pam.d/sshd": PAM[:-1] + " conf=/etc/own\n"}, "read /etc/own alone"),
        ({"/etc/ssh/sshd_config": "UsePAM no\n"}, "sshd does not use PAM"),
        ({"/etc/ssh/sshd_config": "# nothing\n"}, "sshd does not use PAM"),
        (
            {
                "/etc/ssh/sshd_config": "Include sshd_config.d/*.conf\nUsePAM yes\n",
                "/etc/ssh/sshd_config.d/a.conf": "UsePAM no\n",
            },
            "sshd does not use PAM",
        ),
        ({DOCKER: "[Service]\nExecStart=/usr/bin/dockerd\nLimitMEMLOCK=64K\n"}, f"64 KiB ({DOCKER}:3)"),
        (
            {
                DOCKER: "[Service]\nExecStart=/usr/bin/dockerd\n",
                "/etc/docker/daemon.json": '{"default-ulimits": {"memlock": {"Soft": 65536, "Hard": -1}}}',
            },
            "64 KiB soft, unlimited hard",
        ),
        ({DOCKER: "[Service]\nExecStart=/usr/bin/dockerd --default-ulimit memlock=65536\n"}, "is 64 KiB"),
        ({DOCKER: "[Service]\nExecStart=/usr/bin/dockerd --default-ulimit=memlock=1:-1\n"}, "1 bytes soft"),
    ],
)
def test_it_warns_about_what_is_beside_ordinary_users(changes: Files, mention: str) -> None:
    verdict = memlock(changes)
    assert verdict.status is Status.WARN
    assert mention in verdict.message
    assert verdict.remedy


def test_what_holds_for_all_services_is_not_told_again_of_docker() -> None:
    by_type = {"/usr/lib/systemd/system/service.d/a.conf": "[Service]\nLimitMEMLOCK=64K\n"}
    verdict = memlock({**by_type, DOCKER: "[Service]\nExecStart=/usr/bin/dockerd\n"})
    assert "docker" not in verdict.message


@pytest.mark.parametrize(
    "changes",
    [
        {LIMITS_CONF: "", f"{LIMITS_DIRECTORY}/a.conf": GOOD},
        {LIMITS_CONF: "1000: - memlock -1\n@root - memlock 5\n0: - memlock infinity\n"},
        {LIMITS_CONF: GOOD + "alice hard memlock 64\nalice - memlock unlimited\n"},
        {LIMITS_CONF: GOOD + "alice hard nofile 64\n% - memlock 64\n@dev - nproc 5\n"},
        {LIMITS_CONF: "* - memlock unlimited\n", "/etc/os-release": "ID=rocky\n"},
        {f"{LIMITS_DIRECTORY}/a.txt": "* - memlock 64", f"{LIMITS_DIRECTORY}/.a.conf": "* - memlock 64"},
        {SERVICES: "", "/usr/lib/systemd/system/service.d/a.conf": "[Service]\nLimitMEMLOCK=infinity\n"},
        {SERVICES: GOOD_SERVICES + "DefaultLimitMEMLOCK=nonsense\nDefaultLimitMEMLOCK=\n"},
        {"/etc/pam.d/sshd": "@include common\n", "/etc/pam.d/common": PAM},
        {
            "/etc/pam.d/sshd": "session substack a\n",
            "/etc/pam.d/a": "session include b\n",
            "/usr/lib/pam.d/b": PAM,
        },
        {"/etc/pam.d/sshd": "-session optional /usr/lib/security/pam_limits.so\n"},
        {"/etc/pam.d/sshd": PAM[:-1] + " conf=/etc/own\n", "/etc/own": GOOD},
        {"/etc/ssh/sshd_config": "usepam=Yes\nUsePAM no\n"},
        {DOCKER: "[Service]\nExecStart=/usr/bin/dockerd\nLimitMEMLOCK=infinity\n"},
        {DOCKER: "-> /dev/null"},
        {"/etc/docker/daemon.json": '{"default-ulimits": {"memlock": {"Soft": 1, "Hard": 1}}}'},
        {DOCKER: "[Service]\nExecStart=/usr/bin/dockerd\n", "/etc/docker/daemon.json": "{memlock"},
    ],
)
def test_other_spellings_that_work_hold(changes: Files) -> None:
    assert memlock(changes).status is Status.PASS, memlock(changes)


def applied(tree: MemoryTree, *requirements: ResourceLimit) -> Overlay:
    overlay = Overlay(tree)
    for requirement in requirements or (LockedMemory(), OpenFiles()):
        requirement.plan(overlay, PROFILE)
    return overlay


def texts(overlay: Overlay) -> dict[str, str]:
    return {path: node.content.decode() for path, node in overlay.written.items() if isinstance(node, File)}


def test_apply_writes_two_drop_ins_on_a_plain_system() -> None:
    written = texts(applied(tree_of({**DEBIAN, LIMITS_CONF: "", SERVICES: ""})))
    assert list(written) == [
        f"{LIMITS_DIRECTORY}/99-tpu-image.conf",
        "/etc/systemd/system.conf.d/99-tpu-image.conf",
    ]
    lines = [
        " ".join(line.split()) for line in written[f"{LIMITS_DIRECTORY}/99-tpu-image.conf"].splitlines()[1:]
    ]
    assert lines == [
        "* hard memlock unlimited",
        "* soft memlock unlimited",
        "root hard memlock unlimited",
        "root soft memlock unlimited",
        "* soft nofile 100000",
        "root soft nofile 100000",
    ]
    assert written["/etc/systemd/system.conf.d/99-tpu-image.conf"].splitlines()[1:] == [
        "",
        "[Manager]",
        "DefaultLimitMEMLOCK=infinity",
        "DefaultLimitNOFILE=100000:524288",
    ]


@pytest.mark.parametrize(
    ("changes", "path", "line"),
    [
        (
            {LIMITS_CONF: GOOD + "* hard nofile 1000000\n* soft nofile 5\nroot - nofile 200000\n"},
            f"{LIMITS_DIRECTORY}/99-tpu-image.conf",
            "* soft nofile 100000",
        ),
        (
            {LIMITS_CONF: "1000:2000 - nofile 5\n"},
            f"{LIMITS_DIRECTORY}/99-tpu-image.conf",
            "1000:2000 hard nofile 100000",
        ),
        (
            {LIMITS_CONF: "1000: soft nofile 5\n@1000: hard nofile 6\n"},
            f"{LIMITS_DIRECTORY}/99-tpu-image.conf",
            "1000: soft nofile 100000",
        ),
        (
            {f"{LIMITS_DIRECTORY}/zz.conf": "* - nofile 5\n"},
            f"{LIMITS_DIRECTORY}/zz.tpu-image.conf",
            "* hard nofile 100000",
        ),
        (
            {SERVICES: "[Manager]\nDefaultLimitNOFILE=5:1000000\n"},
            "/etc/systemd/system.conf.d/99-tpu-image.conf",
            "DefaultLimitNOFILE=100000:1000000",
        ),
        (
            {"/usr/lib/systemd/system.conf.d/zz.conf": "[Manager]\nDefaultLimitNOFILE=5\n"},
            "/etc/systemd/system.conf.d/zz.tpu-image.conf",
            "DefaultLimitNOFILE=100000:524288",
        ),
        (
            {"/etc/systemd/system/service.d/50.conf": "[Service]\nLimitNOFILE=5\n"},
            "/etc/systemd/system/service.d/99-tpu-image.conf",
            "LimitNOFILE=100000:524288",
        ),
        (
            {DOCKER: "[Service]\nExecStart=/usr/bin/dockerd\nLimitNOFILE=5:infinity\n"},
            "/etc/systemd/system/docker.service.d/99-tpu-image-runtime.conf",
            "LimitNOFILE=100000:infinity",
        ),
        (
            {"/etc/systemd/system.conf.d/99-tpu-image.conf": "-> /dev/null"},
            "/etc/systemd/system.conf.d/99-tpu-image.conf",
            "DefaultLimitNOFILE=100000:524288",
        ),
    ],
)
def test_apply_writes_what_is_missing_where_it_decides(changes: Files, path: str, line: str) -> None:
    overlay = applied(tree_of({**DEBIAN, **changes}))
    assert line in [" ".join(text.split()) for text in texts(overlay)[path].splitlines()]
    assert OpenFiles().inspect(overlay, PROFILE).status is Status.PASS
    assert "/dev/null" not in overlay.written


def test_apply_leaves_what_it_cannot_outrank_and_says_so() -> None:
    tree = tree_of({**DEBIAN, LIMITS_CONF: "1000: -\n" + GOOD})
    overlay = applied(tree, LockedMemory())
    assert not overlay.written
    verdict = LockedMemory().inspect(overlay, PROFILE)
    assert verdict.status is Status.FAIL
    assert verdict.remedy == f"remove line 1 of {LIMITS_CONF}"


LIMIT_LINES = st.builds(
    "{} {} {} {}{}".format,
    st.sampled_from(["*", "root", "@root", "1000:", "0:5", "1000:3000", "@1000:", "%", "alice", "@dev"]),
    st.sampled_from(["soft", "hard", "-", "Soft", "both"]),
    st.sampled_from(["memlock", "nofile", "nproc", "NOFILE", "core"]),
    st.sampled_from(["unlimited", "64", "0", "infinity", "1000000", "100000", "x", "-1"]),
    st.sampled_from(["\n", " # why\n", "\r\n", "\n\n# a comment\n", ""]),
)
LIMIT_FILES = st.lists(LIMIT_LINES, max_size=5).map("".join)
SETTING_LINES = st.builds(
    "{}{}={}\n".format,
    st.sampled_from(["", "Default"]),
    st.sampled_from(["LimitMEMLOCK", "LimitNOFILE", "LimitCORE"]),
    st.sampled_from(["infinity", "64K", "5", "1024:524288", "200000:1000000", "", "x", "5\\"]),
)
SETTING_FILES = st.tuples(
    st.sampled_from(["[Manager]\n", "[Service]\n", ""]), st.lists(SETTING_LINES, max_size=3)
).map(lambda parts: parts[0] + "".join(parts[1]))
NAMES = st.sampled_from(["50-site.conf", "99-tpu-image.conf", "zz.conf", "99-z.conf", "\u00e9.conf"])
SYSTEMD = st.sampled_from(
    [
        "/etc/systemd/system.conf.d",
        "/usr/lib/systemd/system.conf.d",
        "/etc/systemd/system/service.d",
        "/run/systemd/system/docker.service.d",
    ]
)
MACHINES = st.builds(
    lambda main, drop_ins, settings, docker: {
        **DEBIAN,
        LIMITS_CONF: main,
        **{f"{LIMITS_DIRECTORY}/{name}": text for name, text in drop_ins.items()},
        SERVICES: "",
        **{f"{place[0]}/{place[1]}": text for place, text in settings.items()},
        **({DOCKER: "[Service]\nExecStart=/usr/bin/dockerd\nLimitNOFILE=5\n"} if docker else {}),
    },
    LIMIT_FILES,
    st.dictionaries(NAMES, LIMIT_FILES, max_size=3),
    st.dictionaries(st.tuples(SYSTEMD, NAMES), SETTING_FILES, max_size=3),
    st.booleans(),
)
ALICE = Login("alice", 500, 500, ("dev",))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(MACHINES)
@example({**DEBIAN, LIMITS_CONF: "* hard nofile 10000001000\n", SERVICES: ""})
def test_whatever_is_configured_apply_makes_it_hold_once_and_loses_nothing(files: Files) -> None:
    tree = tree_of(files)
    overlay = applied(tree)
    for requirement in (LockedMemory(), OpenFiles()):
        verdict = requirement.inspect(overlay, PROFILE)
        singled_out = [domain for domain in ("alice", "@dev", "@root") if domain in verdict.message]
        # A line that asks for more than the kernel gives anybody is its owner's to lower, and named.
        refused = "more than fs.nr_open" in verdict.message
        holds = verdict.status is Status.PASS or (verdict.status is Status.WARN and singled_out)
        assert holds or refused, verdict
    assert not applied_again(overlay).written

    for path, text in files.items():
        kept = overlay.read_text(path)
        assert kept == text if "tpu-image" not in path else set(comments(text)) <= set(comments(kept)), path
    before, after = Sessions(tree), Sessions(overlay)
    for item in (MEMLOCK, NOFILE):
        for half in ("soft", "hard"):
            _, line = before.granted(ALICE, item).half(half)
            if line is not None and line.entry.domain in ("alice", "@dev"):
                assert after.granted(ALICE, item).half(half)[1] == line


def applied_again(overlay: Overlay) -> Overlay:
    again = Overlay(overlay)
    for requirement in (LockedMemory(), OpenFiles()):
        requirement.plan(again, PROFILE)
    return again


def comments(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.startswith("#")]
