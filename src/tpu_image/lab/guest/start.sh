#!/bin/sh
# Start the probe with the system's Python; where there is none that will do, say that instead.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
export PATH
cd /etc/tpu-image-lab || exit 1

report_port() {
    modprobe -q virtio_console
    tries=60
    while [ "$tries" -gt 0 ]; do
        for port in /sys/class/virtio-ports/*; do
            if [ "$(cat "$port/name" 2>/dev/null)" = tpu-image.lab ]; then
                echo "/dev/${port##*/}"
                return
            fi
        done
        tries=$((tries - 1))
        sleep 1
    done
    return 1
}

port=$(report_port) || {
    echo "tpu-image lab: the kernel shows no virtio-serial port" >/dev/console
    exit 1
}
if python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null; then
    exec python3 -I probe.py "$port"
fi
printf '{"kind": "no-python", "kernel": "%s"}\n{"kind": "end"}\n' "$(uname -r)" >"$port"
poweroff
