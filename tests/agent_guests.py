"""What is run inside a guest to see how its agent fares, and what it prints."""

from __future__ import annotations

from dataclasses import dataclass

from tpu_image.catalogue.agent_record import AGENTS, exits_path
from tpu_image.catalogue.vbar_agent import VBAR
from tpu_image.lab.result import RunResult

NAME = VBAR.unit.removesuffix(".service")

_FUNCTIONS = f"""\
unit={VBAR.unit} root={AGENTS}/{VBAR.program} exits={exits_path(VBAR.program)}
pids() {{ grep -lx {VBAR.program[:15]} /proc/[0-9]*/comm 2>/dev/null | cut -d / -f 3; }}
listens() {{ grep -q ':{VBAR.port:04X} [0-9A-F]*:0000 0A' /proc/net/tcp; }}
is_another() {{ [ -n "$(pids)" ] && [ "$(pids)" != "$first" ] && listens; }}
crashed() {{ [ "$(grep -c "^exit-code exited $status$" $exits)" -ge 3 ]; }}
wait_for() {{
    for _ in $(seq 1200); do "$@" && return; sleep 0.5; done
    echo "never: $*"; systemctl status $unit; journalctl -b -u $unit --no-pager; exit 1
}}
"""

_STATE = """\
echo "running=$(pids | wc -l)"
echo "enabled=$(systemctl is-enabled $unit)"
echo "ready=$(systemctl is-active tpu-image-ready.target)"
echo "restarts=$(systemctl show --property NRestarts --value $unit)"
for name in net pid mnt; do echo "machine.$name=$(readlink /proc/1/ns/$name)"; done
grep ^CapBnd: /proc/1/status | tr -d '[:blank:]' | sed 's/:/=/'
"""

_KILL = """\
first=$(pids)
kill -KILL $first
wait_for is_another
echo "running=$(pids | wc -l)"
sed 's/^/exit=/' $exits
"""

_CRASH = """\
status=3
touch $root/crash
kill -KILL $(pids)
wait_for crashed
python3 -I /etc/tpu-image-lab/tpu-image.pyz / --only machine.agent
rm $root/crash
systemctl reset-failed $unit
systemctl restart $unit
wait_for listens
"""

# At the first boot alone. The stand-in ends with status 5 where its port is taken.
_CONTAINER_CRASH = f"""\
[ "$(cat /etc/tpu-image-lab/boots-done)" = 1 ] || exit 0
systemctl stop $unit
echo "state=$(systemctl is-active $unit)"
echo "stopped=$(tail -n 1 $exits)"
python3 -c 'import socket, time; held = socket.create_server(("", {VBAR.port})); time.sleep(3600)' &
wait_for listens
systemctl start --no-block $unit
status=5
wait_for crashed
kill $!
python3 -I /etc/tpu-image-lab/tpu-image.pyz / --only machine.agent
first=
wait_for is_another
"""

_CONTAINER = f"""\
docker cp {NAME}:/notes - | tar -xO
docker inspect --format 'privileged={{{{.HostConfig.Privileged}}}}
network={{{{.HostConfig.NetworkMode}}}}' {NAME}
echo "containers=$(docker ps --all --quiet | wc -l)"
docker image ls --all --no-trunc --format 'image={{{{.Repository}}}}:{{{{.Tag}}}}'
echo "loaded=$(stat --format %y /var/lib/docker/image/*/imagedb/content/sha256/*)"
"""

KILLED = _FUNCTIONS + _KILL
CRASHING = _FUNCTIONS + _CRASH
UNPACKED_STATE = _FUNCTIONS + _STATE + "cat $root/notes\n"
CONTAINER_CRASHING = _FUNCTIONS + _CONTAINER_CRASH
CONTAINER_STATE = _FUNCTIONS + _STATE + _CONTAINER


@dataclass(frozen=True)
class Told:
    """Lines ``KEY=VALUE`` that a command printed; a key that comes again has all of its values."""

    values: dict[str, list[str]]

    @classmethod
    def by(cls, run: RunResult) -> Told:
        assert run.status == 0, run.output
        values: dict[str, list[str]] = {}
        for key, equals, value in (line.partition("=") for line in run.output.splitlines()):
            if equals:
                values.setdefault(key, []).append(value)
        return cls(values)

    def __getitem__(self, key: str) -> str:
        """The last value of a key."""
        return self.values[key][-1]
