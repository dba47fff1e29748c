"""The agent's service under a real systemd: a stand-in that notes how it is run, in a booted Debian container."""

from __future__ import annotations

from pathlib import Path

import pytest

import container
from agent_images import docker_archive, entry, layer, link, program, stand_in
from tpu_image.agents.installation import installed
from tpu_image.agents.spool import Spool
from tpu_image.catalogue.agent_record import AGENTS
from tpu_image.catalogue.requirement import Profile, Status
from tpu_image.catalogue.vbar_agent import VBAR, VbarAgent
from tpu_image.plan import Plan, apply
from tpu_image.trees.directory import DirectoryTree
from tpu_image.trees.overlay import Overlay

pytestmark = pytest.mark.real

UNPACKED = f"{AGENTS}/vbar_control_agent"

SCRIPT = f"""\
unit={VBAR.unit} notes={UNPACKED}/notes
listens() {{ grep -q ':20A1 [0-9A-F]*:0000 0A' /proc/net/tcp; }}
wait_for() {{
    for _ in $(seq 300); do "$@" && return; sleep 0.1; done
    echo "never: $*"; systemctl status $unit; return 1
}}
main() {{ systemctl show --property MainPID --value $unit; }}
is_another() {{ [ "$(main)" != 0 ] && [ "$(main)" != "$first" ]; }}
ended() {{ [ "$(wc -l < /run/tpu-image/vbar_control_agent.exits)" -ge 5 ]; }}
failed() {{ systemctl is-failed --quiet $unit; }}

wait_for listens || exit 1
for name in net pid mnt; do echo "machine.$name=$(readlink /proc/1/ns/$name)"; done
grep ^CapBnd: /proc/1/status | tr -d '[:blank:]' | sed 's/:/=/'
echo "machine.hosts=$(stat --format %s /etc/hosts)"
echo "enabled=$(systemctl is-enabled $unit)"
echo "ready=$(systemctl is-active tpu-image-ready.target)"
cat $notes
first=$(main)
kill -KILL "$first"
wait_for is_another && wait_for listens && echo restarted=yes
systemctl stop $unit
touch {UNPACKED}/crash
mkdir -p /run/systemd/system/$unit.d
printf '[Unit]\\nStartLimitBurst=3\\n[Service]\\nRestartSec=100ms\\n' > /run/systemd/system/$unit.d/quick.conf
systemctl daemon-reload
systemctl reset-failed $unit
systemctl start $unit
wait_for ended && wait_for failed && echo "result=$(systemctl show --property Result --value $unit)"
sed 's/^/exit=/' /run/tpu-image/vbar_control_agent.exits
"""


def test_the_service_runs_the_agent_as_the_document_would(debian_root: Path, tmp_path: Path) -> None:
    resolver = link("etc/resolv.conf", "../run/systemd/resolve/stub-resolv.conf")
    accounts = entry("etc/passwd", b"root:x:0:0::/home/agent:/bin/sh\n")
    tar = layer(link("bin", "/usr/bin"), resolver, accounts, program(stand_in(tmp_path)))
    archive = docker_archive(
        tmp_path / "image.tar", tar, WorkingDir="/work", Entrypoint=["/bin/vbar_control_agent"]
    )
    with (
        DirectoryTree(debian_root) as tree,
        Spool() as spool,
        installed(VBAR, str(archive), spool, tree) as made,
    ):
        overlay = Overlay(tree)
        made.write(overlay)
        overlay.write("/etc/systemd/system/tpu-image-ready.target", "[Unit]\n")
        apply(Plan.from_overlay(overlay), debian_root)
        made.unpack(str(debian_root))
    with DirectoryTree(debian_root) as tree:
        assert VbarAgent().inspect(tree, Profile()).status is Status.PASS
    (debian_root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    container.prepare(debian_root, SCRIPT)
    lines = container.boot(debian_root).splitlines()
    told = dict(line.split("=", 1) for line in lines if "=" in line)

    assert [line.partition("=")[2] for line in lines if line.startswith("argument=")][
        : len(VBAR.arguments)
    ] == list(VBAR.arguments)
    assert told["program"] == "/bin/vbar_control_agent"
    assert told["net"] == told["machine.net"]
    assert told["pid"] == told["machine.pid"]
    assert told["mnt"] != told["machine.mnt"]
    assert (told["CapEff"], told["Uid"].split()[0]) == (told["CapBnd"], "0")
    assert (told["cwd"], told["MODE"], told["HOME"]) == ("/work", "50% $x", "/home/agent")
    assert (told["null"], told["sys"], told["usr"]) == ("1", "1", "0")
    assert told["hosts"] == told["machine.hosts"]
    assert (told["enabled"], told["ready"], told["restarted"]) == ("enabled", "active", "yes")
    exits = [line.partition("=")[2] for line in lines if line.startswith("exit=")]
    assert exits[0] == "signal killed KILL"
    assert exits[1].startswith("success ")
    assert exits[2:] == ["exit-code exited 3"] * 3, "\n".join(lines)
    assert told["result"] in ("exit-code", "start-limit-hit")
