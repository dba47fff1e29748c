"""What is written for an agent, and that the checks of the catalogue are content with it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_images import PROGRAM, REFERENCE, directory, docker_archive, entry, layer, link, program
from tpu_image.agents import configuration
from tpu_image.agents.errors import AgentError
from tpu_image.agents.installation import AgentInstallation, installed
from tpu_image.agents.spool import Spool
from tpu_image.catalogue.agent_record import AGENTS
from tpu_image.catalogue.agents import Agent
from tpu_image.catalogue.requirement import Profile, Status, Verdict
from tpu_image.catalogue.telemetry import COLLECTOR, TelemetryCollector
from tpu_image.catalogue.vbar_agent import VBAR, VbarAgent
from tpu_image.formats.systemd_command import parse_commands
from tpu_image.formats.systemd_unit import UnitFile
from tpu_image.trees.memory import File, MemoryTree, Node, Symlink
from tpu_image.trees.overlay import Overlay

LIB = "/usr/lib/systemd/system"
WANTS = "/etc/systemd/system/multi-user.target.wants"
BASE: dict[str, Node] = {
    f"{LIB}/default.target": Symlink("multi-user.target"),
    f"{LIB}/multi-user.target": File(b"[Unit]\n"),
    "/usr/lib/systemd/libsystemd-shared-252.so": File(b""),
}
DOCKER: dict[str, Node] = {
    **BASE,
    "/usr/bin/docker": File(b"\x7fELF", 0o755),
    f"{LIB}/docker.service": File(b"[Service]\nExecStart=/usr/bin/dockerd\n"),
    f"{WANTS}/docker.service": Symlink("/usr/lib/systemd/system/docker.service"),
}
LAYER = layer(directory("tmp", 0o1777), link("bin", "/usr/bin"), program())


@contextmanager
def installation(
    folder: Path,
    base: dict[str, Node],
    agent: Agent = VBAR,
    runtime: str = "",
    text: bytes | None = None,
    **settings: Any,
) -> Iterator[AgentInstallation]:
    archive = docker_archive(folder / "image.tar", LAYER, layer(entry("etc/more", b"2")), **settings)
    with (
        Spool() as spool,
        installed(agent, str(archive), spool, MemoryTree(base), runtime=runtime, configuration=text) as made,
    ):
        yield made


def verdict_after(made: AgentInstallation, base: dict[str, Node], agent: Agent = VBAR) -> Verdict:
    """What the check says of the base with all that an installation writes."""
    overlay = Overlay(MemoryTree(base))
    made.write(overlay)
    nodes = made.nodes(overlay.written)
    tree = MemoryTree(base)
    for path in sorted(nodes):
        node = nodes[path]
        assert node is not None
        tree.put(path, node)
    requirement = VbarAgent() if agent is VBAR else TelemetryCollector()
    return requirement.inspect(tree, Profile(telemetry=True))


def settings_of(made: AgentInstallation, key: str) -> list[str]:
    return [setting.value for setting in UnitFile(made.unit).settings if setting.key == key]


@pytest.mark.parametrize("runtime", ["systemd", "docker"])
@pytest.mark.parametrize("agent", [VBAR, COLLECTOR], ids=lambda agent: agent.name)
def test_the_check_passes_on_what_is_written(agent: Agent, runtime: str, tmp_path: Path) -> None:
    with installation(tmp_path, DOCKER, agent, runtime) as made:
        verdict = verdict_after(made, DOCKER, agent)
        assert verdict.status is Status.PASS, verdict
        assert made.digest in verdict.message


@pytest.mark.parametrize(
    "entrypoint", [None, [], ["vbar_control_agent"], ["/start.sh"], ["/bin/vbar_control_agent"]]
)
def test_the_check_passes_whatever_starts_the_agent(entrypoint: list[str] | None, tmp_path: Path) -> None:
    shell = entry("usr/bin/sh", b"\x7fELF", mode=0o755)
    script = entry("start.sh", b"#!/bin/sh\n", mode=0o755)
    tar = layer(link("bin", "/usr/bin"), program(), shell, script)
    archive = docker_archive(tmp_path / "image.tar", tar, Entrypoint=entrypoint)
    with Spool() as spool, installed(VBAR, str(archive), spool, MemoryTree(BASE)) as made:
        assert verdict_after(made, BASE).status is Status.PASS
        (command,) = settings_of(made, "ExecStart")
        assert parse_commands(command)[0].arguments == VBAR.arguments


def test_the_documents_arguments_are_given_exactly(tmp_path: Path) -> None:
    for runtime in ("systemd", "docker"):
        with installation(tmp_path, DOCKER, runtime=runtime, Cmd=["--own"]) as made:
            (command,) = settings_of(made, "ExecStart")
            assert command.endswith(
                " --logtostderr --gid= --uid= --chroot= --census_enabled=false --loas_pwd_fallback_in_corp"
            )
            assert "--own" not in command


def test_the_base_decides_what_runs_it(tmp_path: Path) -> None:
    for base, expected in ((BASE, "systemd"), (DOCKER, "docker")):
        with installation(tmp_path, base) as made:
            assert made.runtime.value == expected


def test_docker_is_refused_where_the_base_does_not_start_it(tmp_path: Path) -> None:
    without = {path: node for path, node in DOCKER.items() if not path.startswith(WANTS)}
    for base in (BASE, without):
        docker = installation(tmp_path, base, runtime="docker")
        with pytest.raises(AgentError, match=r"no Docker that starts at boot; install docker\.io"), docker:
            pass


def test_docker_as_a_snap_is_found_where_it_is(tmp_path: Path) -> None:
    service = "snap.docker.dockerd.service"
    base = {
        **BASE,
        "/snap/bin/docker": File(b"\x7fELF", 0o755),
        f"/etc/systemd/system/{service}": File(b"[Service]\nExecStart=/usr/bin/snap run docker.dockerd\n"),
        f"{WANTS}/{service}": Symlink(f"/etc/systemd/system/{service}"),
    }
    with installation(tmp_path, base) as made:
        assert made.runtime.value == "docker"
        assert "/usr/bin/docker" not in made.unit
        assert any(service in value for value in settings_of(made, "After"))
        assert verdict_after(made, base).status is Status.PASS


def test_an_unpacked_directory_is_not_for_docker(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    with Spool() as spool:
        docker = installed(VBAR, str(tmp_path / "root"), spool, MemoryTree(DOCKER))
        with pytest.raises(AgentError, match="a directory, which Docker does not load"), docker:
            pass


@pytest.mark.parametrize(
    ("settings", "mentions"),
    [
        ({"Entrypoint": ["/other"]}, "has no program /other"),
        ({"Entrypoint": ["/tmp"]}, "has no program /tmp"),
        ({"Entrypoint": None, "Env": ["PATH=/sbin"]}, "has no program vbar_control_agent"),
        ({"User": "nobody"}, "nobody, whom it does not have"),
        ({"User": "0:nobody"}, ""),
        ({"User": "1:nobody"}, "no group nobody"),
        ({"WorkingDir": "/a\nUser=x"}, "has the working directory"),
        ({"WorkingDir": "/a\\"}, "has the working directory"),
        ({"WorkingDir": "/opt/an agent/x"}, ""),
    ],
)
def test_an_image_without_its_program_or_user_is_refused(
    settings: dict[str, Any], mentions: str, tmp_path: Path
) -> None:
    with contextlib.ExitStack() as stack:
        if mentions:
            stack.enter_context(pytest.raises(AgentError, match=mentions))
        stack.enter_context(installation(tmp_path, BASE, **settings))


def test_values_of_the_image_mean_themselves_in_the_unit(tmp_path: Path) -> None:
    nasty = 'a"b\\c %n $HOME \n[Service]\nUser=x'
    with installation(
        tmp_path, BASE, Env=[f"NASTY={nasty}", "bad name=x"], Entrypoint=[PROGRAM, "%n $HOME; x"]
    ) as made:
        assert settings_of(made, "User") == []
        (command,) = settings_of(made, "ExecStart")
        assert parse_commands(command)[0].arguments[0] == "%%n $$HOME; x"
        assert any(
            nasty.replace("%", "%%") in word
            for v in settings_of(made, "Environment")
            for word in parse_commands(v)[0].words
        )
        assert "bad name" not in made.unit


def test_a_user_of_the_image_is_looked_up_in_the_image(tmp_path: Path) -> None:
    tar = layer(
        program(),
        entry("etc/passwd", b"root:x:0:0::/:\notel:x:10001:10002::/:\n"),
        entry("etc/group", b"g:x:77:\n"),
    )
    expected = {
        "otel": ("10001", "10002"),
        "otel:g": ("10001", "77"),
        "10001": ("10001", "10002"),
        "5:6": ("5", "6"),
    }
    for user, (uid, gid) in expected.items():
        archive = docker_archive(tmp_path / "i.tar", tar, User=user)
        with Spool() as spool, installed(COLLECTOR, str(archive), spool, MemoryTree(BASE)) as made:
            assert (settings_of(made, "User"), settings_of(made, "Group")) == ([uid], [gid])
            assert verdict_after(made, BASE, COLLECTOR).status is Status.PASS


def test_the_home_is_the_one_that_docker_would_give(tmp_path: Path) -> None:
    accounts = entry("etc/passwd", b"root:x:0:0::/:\notel:x:5:6::/home/otel:/bin/sh\n")
    for entries, settings, home in (
        ([], {}, "/"),
        ([accounts], {}, "/"),
        ([accounts], {"User": "otel"}, "/home/otel"),
        ([accounts], {"User": "7"}, "/"),
        ([accounts], {"User": "otel", "Env": ["HOME=/mine"]}, "/mine"),
    ):
        archive = docker_archive(tmp_path / "i.tar", layer(program(), *entries), **settings)
        with Spool() as spool, installed(COLLECTOR, str(archive), spool, MemoryTree(BASE)) as made:
            homes = [word for word in settings_of(made, "Environment") if "HOME=" in word]
            assert [word.strip('"') for word in homes] == [f"HOME={home}"]


def test_a_mask_is_taken_away_and_a_former_archive_too(tmp_path: Path) -> None:
    override = f"/etc/systemd/system/{VBAR.unit}"
    base = {**BASE, override: Symlink("/dev/null"), f"{AGENTS}/vbar_control_agent.tar": File(b"")}
    with installation(tmp_path, base) as made:
        overlay = Overlay(MemoryTree(base))
        made.write(overlay)
        assert overlay.written[override] is None
        assert overlay.written[f"{AGENTS}/vbar_control_agent.tar"] is None


def test_steps_of_restarts_are_for_a_systemd_that_knows_them(tmp_path: Path) -> None:
    newer: dict[str, Node] = {"/usr/lib/x86_64-linux-gnu/systemd/libsystemd-shared-255.so": File(b"")}
    for base, expected in ((BASE, []), ({**BASE, **newer}, ["4"])):
        with installation(tmp_path, base) as made:
            assert settings_of(made, "RestartSteps") == expected


def test_a_configuration_is_mounted_read_only_where_the_agent_looks_for_it(tmp_path: Path) -> None:
    path = "/etc/tpu-image/ai-telemetry-collector.yaml"
    for runtime, key in (("systemd", "BindReadOnlyPaths"), ("docker", "ExecStart")):
        with installation(tmp_path, DOCKER, COLLECTOR, runtime, b"a: 1\n") as made:
            wanted = f"{path}:{COLLECTOR.configuration}" + (":ro" if runtime == "docker" else "")
            assert any(wanted in value for value in settings_of(made, key))
            assert verdict_after(made, DOCKER, COLLECTOR).status is Status.PASS
            overlay = Overlay(MemoryTree(DOCKER))
            made.write(overlay)
            assert overlay.read_text(path) == "a: 1\n"


@pytest.mark.parametrize(
    ("words", "target"),
    [
        (["--config=/etc/otel/config.yaml"], "/etc/otel/config.yaml"),
        (["--config", "file:/conf/c.yaml"], "/conf/c.yaml"),
        (["--config=/../etc/passwd"], COLLECTOR.configuration),
        (["--config=/a:/b"], COLLECTOR.configuration),
        (["--config=env:CONFIG"], COLLECTOR.configuration),
        (["--config"], COLLECTOR.configuration),
    ],
)
def test_a_configuration_goes_where_the_image_says(words: list[str], target: str, tmp_path: Path) -> None:
    with installation(tmp_path, BASE, COLLECTOR, text=b"a: 1\n", Cmd=words) as made:
        assert any(value.endswith(f".yaml:{target}") for value in settings_of(made, "BindReadOnlyPaths"))


def test_ends_of_an_agent_are_noted_and_bounded(tmp_path: Path) -> None:
    with installation(tmp_path, BASE) as made:
        (command,) = settings_of(made, "ExecStopPost")
    text = parse_commands(command)[0].words[-1].replace("$$", "$").replace("/run/", f"{tmp_path}/run/")
    ended = {
        "PATH": "/usr/bin:/bin",
        "SERVICE_RESULT": "exit-code",
        "EXIT_CODE": "exited",
        "EXIT_STATUS": "3",
    }
    exits = tmp_path / "run/tpu-image/vbar_control_agent.exits"
    subprocess.run(["sh", "-c", text], check=True, env=ended)
    subprocess.run(
        ["sh", "-c", text], check=True, env={"PATH": "/usr/bin:/bin", "SERVICE_RESULT": "exec-condition"}
    )
    assert exits.read_text() == "exit-code exited 3\nexec-condition - -\n"
    exits.write_text("exit-code exited 1\n" * 500)
    subprocess.run(["sh", "-c", text], check=True, env=ended)
    assert exits.read_text().splitlines()[98:] == ["exit-code exited 1", "exit-code exited 3"]


def test_a_configuration_that_is_no_yaml_is_refused_with_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    for text, place in (
        (b"a: 1\nb: [1\nc: 2\n", ":3:2: is no YAML"),
        (b"a: 1\na: 2\n", ":2:1: has the key a twice"),
        (b"a: \xff\n", ":1: is no UTF-8"),
    ):
        path.write_bytes(text)
        with pytest.raises(AgentError) as caught:
            configuration.read(path)
        assert f"{path}{place}" in str(caught.value)
    path.write_bytes(b"receivers: {otlp: {}}\n")
    assert configuration.read(path) == b"receivers: {otlp: {}}\n"


@pytest.mark.parametrize(
    "name", ["--volume=/:/x/vbar_control_agent:1", "x y/vbar_control_agent:1", "other:1"]
)
def test_a_strange_name_of_an_image_does_not_get_into_a_command(name: str, tmp_path: Path) -> None:
    with installation(tmp_path, DOCKER, names=[name]) as made:
        (command,) = settings_of(made, "ExecStart")
        assert f" {VBAR.image} --logtostderr" in command
        assert name not in command


def test_the_archive_for_docker_is_an_archive_of_the_same_image(tmp_path: Path) -> None:
    with installation(tmp_path, DOCKER) as made:
        made.unpack(str(tmp_path))
        path = tmp_path / AGENTS.lstrip("/") / "vbar_control_agent.tar"
        with tarfile.open(path) as archive:
            member = archive.extractfile("manifest.json")
            assert member is not None
            (described,) = json.loads(member.read())
        assert described["RepoTags"][0] == REFERENCE
        kept_as = described["RepoTags"][1]
        assert kept_as in made.unit
    with Spool() as spool, installed(VBAR, f"{path}:{kept_as}", spool, MemoryTree(BASE)) as again:
        assert again.digest == made.digest


@pytest.mark.parametrize(
    ("asked", "result", "noted"),
    [
        (True, "success", "success"),
        (True, "exit-code", "success"),
        (False, "success", "exit-code"),
        (False, "start-limit-hit", "start-limit-hit"),
    ],
)
def test_a_container_that_was_stopped_is_told_from_one_that_was_killed(
    asked: bool, result: str, noted: str, tmp_path: Path
) -> None:
    """The unit's own commands: a killed container ends with the same status as one that is stopped."""
    fake = tmp_path / "docker"
    fake.write_text("#!/bin/sh\n")
    fake.chmod(0o755)
    with installation(tmp_path, DOCKER, runtime="docker") as made:
        steps = [settings_of(made, name)[-1] for name in ("ExecStop", "ExecStopPost")]
    environment = {
        "PATH": "/usr/bin:/bin",
        "MAINPID": "1" if asked else "",
        "SERVICE_RESULT": result,
        "EXIT_CODE": "exited",
        "EXIT_STATUS": "137",
    }
    for step in steps:
        text = parse_commands(step)[0].words[-1].replace("$$", "$").replace("/run/", f"{tmp_path}/run/")
        text = text.replace("/usr/bin/docker", str(fake))
        subprocess.run(["sh", "-c", text], check=True, env=environment)
    assert (tmp_path / "run/tpu-image/vbar_control_agent.exits").read_text() == f"{noted} exited 137\n"
    assert not (tmp_path / "run/tpu-image/vbar_control_agent.exits.stopping").exists()


def test_docker_loads_the_image_once_and_replaces_a_container_that_was_left(tmp_path: Path) -> None:
    """The unit's own commands, with a Docker that notes what it is asked and knows an image once it is loaded."""
    fake = tmp_path / "bin/docker"
    fake.parent.mkdir()
    fake.write_text(
        f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\n'
        f'case "$*" in load*) cat >{tmp_path}/loaded;; "image inspect"*) test -e {tmp_path}/loaded;; esac\n'
    )
    fake.chmod(0o755)
    with installation(tmp_path, DOCKER, runtime="docker") as made:
        made.unpack(str(tmp_path))
        steps = [*settings_of(made, "ExecStartPre"), *settings_of(made, "ExecStart")] * 2
    for step in steps:
        (command,) = parse_commands(step)
        words = [word.replace("$$", "$").replace("/usr/bin/docker", "docker") for word in command.words]
        words[-1] = words[-1].replace(f"<{AGENTS}", f"<{tmp_path}{AGENTS}")
        subprocess.run(words, check=True, env={"PATH": f"{fake.parent}:/usr/bin:/bin"})
    asked = (tmp_path / "asked").read_text().splitlines()
    loads = [line for line in asked if line.startswith("load")]
    assert loads == ["load --quiet"]
    assert [line for line in asked if line.startswith("rm")] == ["rm --force tpu-image-vbar-agent"] * 2
    assert (tmp_path / "loaded").read_bytes() == (
        tmp_path / f"{AGENTS[1:]}/vbar_control_agent.tar"
    ).read_bytes()
    runs = [line for line in asked if line.startswith("run")]
    assert len(runs) == 2
    assert "--rm --pull=never --name=tpu-image-vbar-agent --privileged --net=host" in runs[0]
    assert not any(line.startswith("pull") for line in asked)


def test_another_runtime_takes_the_files_of_the_former_away(tmp_path: Path) -> None:
    names = []
    for runtime in ("systemd", "docker", "systemd"):
        with installation(tmp_path, DOCKER, runtime=runtime) as made:
            made.unpack(str(tmp_path))
        names.append([p.name for p in (tmp_path / AGENTS.lstrip("/")).iterdir()])
    assert names == [["vbar_control_agent"], ["vbar_control_agent.tar"], ["vbar_control_agent"]]


@pytest.mark.parametrize("runtime", ["systemd", "docker"])
@pytest.mark.parametrize("agent", [VBAR, COLLECTOR], ids=lambda agent: agent.name)
def test_systemd_analyze_has_nothing_to_say(agent: Agent, runtime: str, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.fail("systemd-analyze is missing: install systemd")
    with installation(tmp_path, DOCKER, agent, runtime, b"a: 1\n" if agent is COLLECTOR else None) as made:
        root = tmp_path / "root"
        unit = root / "etc/systemd/system" / agent.unit
        unit.parent.mkdir(parents=True)
        unit.write_text(made.unit)
        for name in ("sysinit", "basic", "shutdown", "network-online", "multi-user"):
            (unit.parent / f"{name}.target").write_text("[Unit]\nDescription=x\n")
        (unit.parent / "docker.service").write_text("[Service]\nExecStart=/bin/true\n")
        for name in ("bin/sh", "bin/true", "usr/bin/docker", "usr/bin/vbar_control_agent"):
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"\x7fELF")
            path.chmod(0o755)
    result = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", f"--root={root}", agent.unit],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


def test_others_wait_for_the_port_and_not_for_an_agent_that_has_ended(tmp_path: Path) -> None:
    with installation(tmp_path, BASE) as made:
        (command,) = settings_of(made, "ExecStartPost")
    words = [word.replace("$$", "$") for word in parse_commands(command)[0].words]
    with subprocess.Popen(["true"]) as ended:
        pass
    with contextlib.closing(socket.socket()) as listener:
        waiting = {"MAINPID": str(os.getpid()), "PATH": "/usr/bin:/bin"}
        subprocess.run(words, check=False, env={**waiting, "MAINPID": str(ended.pid)}, timeout=20)
        with pytest.raises(subprocess.TimeoutExpired):
            subprocess.run(words, check=False, env=waiting, timeout=1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", VBAR.port))
        listener.listen()
        subprocess.run(words, check=True, env=waiting, timeout=20)
