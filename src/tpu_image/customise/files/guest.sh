# The first process of the virtual machine in which an image's programs run, in place of its init.
#
# It is given what to do by settings.sh, beside it: TOKEN, with which it begins each line that tpu-image is to heed,
# ROOT, ASIDE, and the functions prepare, run_steps, give_back and execute. Only what every system has is used here.
# shellcheck shell=sh
set -u
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
OWN=/run/tpu-image/.session
PORT=/dev/ttyS1
PATIENCE=10

tell() {
    # A program may have left a line without an end.
    printf '\n%s %s\n' "$TOKEN" "$*" >&3
}

stop() {
    [ "$#" -eq 0 ] || tell error "$*"
    while :; do sleep 60; done
}

patiently() {
    # What was killed needs a moment to let go of its files.
    tries=0
    until "$@" 2>/dev/null; do
        tries=$((tries + 1))
        [ "$tries" -lt "$PATIENCE" ] || return 1
        sleep 1
    done
}

mount_system() {
    [ -e /proc/self ] || mount -t proc proc /proc
    [ -d /sys/kernel ] || mount -t sysfs sysfs /sys
    mkdir -p /dev/pts /dev/shm /run/lock
    [ -c /dev/pts/ptmx ] || mount -t devpts -o nosuid,noexec,ptmxmode=0666,mode=0620,gid=5 devpts /dev/pts
    mount -t tmpfs -o nosuid,nodev tmpfs /dev/shm
    mount -t tmpfs -o nosuid,nodev,mode=1777 tmpfs /tmp || stop "this kernel does not mount /tmp"
    chmod 1777 /run/lock
    for link in fd:/proc/self/fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do
        [ -e "/dev/${link%%:*}" ] || ln -s "${link#*:}" "/dev/${link%%:*}"
    done
    echo localhost >/proc/sys/kernel/hostname
    mount -o remount,rw,nodev,errors=remount-ro "$ROOT" / || stop "this kernel does not mount the root for writing"
}

start_network() {
    modprobe -q virtio_net
    if ! command -v ip >/dev/null; then
        tell line "the image has no program ip: nothing in it reaches the network"
        return
    fi
    ip link set lo up
    for device in /sys/class/net/*; do
        device=${device##*/}
        [ "$device" != lo ] || continue
        ip link set "$device" up && ip address add "$1" dev "$device" && ip route add default via "$2"
    done
}

link() {
    # What udev would name a volume: update-grub writes the root's UUID only where it finds it there.
    [ -e "$1" ] || { mkdir -p "${1%/*}" && ln -s "$2" "$1"; }
}

leave_out() {
    tell line "$1 is no folder of the image: what /etc/fstab mounts there is left out"
}

mount_volume() {
    if [ ! -d "$1" ]; then
        leave_out "$1"
    elif mount -t "$3" -o nodev,errors=remount-ro "$2" "$1"; then
        : >"$OWN/mounted-$4"
    else
        stop "this kernel does not mount $1"
    fi
}

unmount_volume() {
    [ ! -e "$OWN/mounted-$2" ] || patiently umount "$1" || stop "$1 cannot be unmounted"
}

put() {
    [ -d "${1%/*}" ] || return 0
    : >"$OWN/put-$3"
    if [ -e "$1" ] || [ -L "$1" ]; then mv -T "$1" "$1$ASIDE" || stop "$1 cannot be put aside"; fi
    if ! cp "$OWN/stand-in-$3" "$1" || ! chmod "$2" "$1"; then stop "$1 cannot be written"; fi
}

take_away() {
    [ -e "$OWN/put-$2" ] || return 0
    # What something else put there meanwhile stays.
    if [ -f "$1" ] && [ ! -L "$1" ] && [ "$(cksum <"$1")" = "$(cksum <"$OWN/stand-in-$2")" ]; then
        rm "$1" || stop "$1 cannot be taken away"
    fi
    if [ -e "$1" ] || [ -L "$1" ]; then
        rm -rf "$1$ASIDE"
    elif [ -e "$1$ASIDE" ] || [ -L "$1$ASIDE" ]; then
        mv -T "$1$ASIDE" "$1" || stop "$1 cannot be put back"
    fi
}

step() {
    number=$1
    shift
    tell step "$number"
    (execute "$@") </dev/null >&3 2>&1 3>&-
    status=$?
    kill -KILL -1 2>/dev/null # the first process is spared
    [ "$status" -eq 0 ] || { tell status "$status" && stop; }
}

begin() {
    # In raw mode nothing is added to what is written.
    stty raw -echo <&3
    tell "here" # from now on, what is on the disk is changed
    mount_system
    prepare
    run_steps
    # A package may have replaced this shell and its libraries: while they run, the root is not let go of.
    exec /bin/sh "$OWN/guest.sh" finish
}

finish() {
    give_back
    patiently umount /tmp || stop "/tmp cannot be unmounted"
    sync
    patiently mount -o remount,ro "$ROOT" / || stop "the root cannot be written to its end: something in it is in use"
    tell "done"
    stop
}

# shellcheck source=/dev/null
. "$OWN/settings.sh"
exec 3<>"$PORT"
"${1-begin}"
