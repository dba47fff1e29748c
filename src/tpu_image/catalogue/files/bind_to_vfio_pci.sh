#!/bin/sh
# Bind one TPU function to vfio-pci and open its device nodes.
#
# usage: bind_to_vfio_pci.sh DOMAIN:BUS:DEVICE.FUNCTION     (as in /sys/bus/pci/devices)
#
# udev runs it for every TPU function that appears (99-tpu-vfiopci.rules). Running it again changes nothing.
# exit status: 0 bound, nodes open      3 no such PCI function      5 not bound
#              2 not a PCI address      4 no IOMMU in effect        6 a device node is missing or not open

# Mode of the device nodes, and the group that owns them; no group leaves them root's.
node_mode=0666
node_group=

set -u
PATH=/usr/sbin:/usr/bin:/sbin:/bin
LC_ALL=C
export PATH LC_ALL
umask 022

address=

say() {
    printf 'bind_to_vfio_pci: %s\n' "${address:+$address: }$1" >&2
    # udev logs what its programs print when debugging only: the journal gets it from here.
    [ -t 2 ] || logger -t bind_to_vfio_pci -- "${address:+$address: }$1" 2>/dev/null || :
}

fail() {
    say "$2"
    exit "$1"
}

is_pci_address() {
    domain=${1%%:*}
    case $domain in '' | *[!0-9a-f]*) return 1 ;; esac
    [ ${#domain} -ge 4 ] && [ ${#domain} -le 8 ] || return 1
    case ${1#*:} in [0-9a-f][0-9a-f]:[0-9a-f][0-9a-f].[0-7]) return 0 ;; esac
    return 1
}

# The kernel answers a write that it refuses with an error; the shell's words for it are not worth keeping.
put() {
    { printf '%s\n' "$1" >"$2"; } 2>/dev/null
}

# first_line FILE: what it begins with, in $line. A program for that would take longer than all the rest.
first_line() {
    line=
    { read -r line <"$1"; } 2>/dev/null
}

# has_driver NAME
has_driver() {
    [ -e "/sys/bus/pci/drivers/$1/$address" ]
}

# wait_for COMMAND...: until it succeeds, for two seconds at most.
wait_for() {
    tries=20
    until "$@"; do
        tries=$((tries - 1))
        [ "$tries" -gt 0 ] || return 1
        sleep 0.1 2>/dev/null || sleep 1
    done
}

has_left_driver() {
    ! has_driver "$1"
}

is_node() {
    [ -c "$1" ]
}

load_modules() {
    for module in vfio_iommu_type1 vfio_pci; do
        first_line "/sys/module/$module/initstate"
        [ "$line" = live ] || modprobe -q "$module" || say "modprobe $module failed"
    done
    [ -d /sys/bus/pci/drivers/vfio-pci ] || fail 5 "the running kernel, $(uname -r), has no driver vfio-pci"
}

allow_unsafe_interrupts() {
    for module in vfio_iommu_type1 iommufd; do
        parameter=/sys/module/$module/parameters/allow_unsafe_interrupts
        if first_line "$parameter" && [ "$line" != Y ] && [ "$(uname -m)" = x86_64 ]; then
            put Y "$parameter" || say "$parameter could not be set"
        fi
    done
}

require_iommu() {
    group=$(readlink "$function/iommu_group") ||
        fail 4 "no IOMMU in effect, so vfio-pci cannot take it (kernel parameter intel_iommu=on)"
    group=${group##*/}
    first_line "/sys/kernel/iommu_groups/$group/name"
    [ "$line" != vfio-noiommu ] || fail 4 "no IOMMU in effect: group $group is vfio-noiommu"
}

# 99-tpu.rules opens /dev/vfio/GROUP for marked groups alone. The mark leads to the function inside the group,
# so that it stands for nothing once the function has left.
mark_group() {
    marks=/run/tpu-image/iommu-groups
    [ -e "$marks/$group" ] && return
    [ -d "$marks" ] || mkdir -p "$marks"
    ln -sfn "/sys/kernel/iommu_groups/$group/devices/$address" "$marks/$group" ||
        say "$marks/$group could not be made"
}

bind_function() {
    if has_driver vfio-pci; then return; fi
    # The override comes first: no other driver can take the function while it has none.
    put vfio-pci "$function/driver_override" || fail 5 "driver_override was refused"
    if previous=$(readlink "$function/driver"); then
        previous=${previous##*/}
        put "$address" "$function/driver/unbind" || fail 5 "the driver $previous does not let go of it"
        wait_for has_left_driver "$previous" || fail 5 "the driver $previous keeps it"
    fi
    put "$address" /sys/bus/pci/drivers_probe || say "drivers_probe reported an error"
    wait_for has_driver vfio-pci || fail 5 "the kernel did not bind it to vfio-pci (previous driver: ${previous:-none}); see dmesg"
}

open_node() {
    wait_for is_node "$1" || fail 6 "$1 did not appear"
    [ -z "$node_group" ] || chgrp "$node_group" "$1" || fail 6 "$1 could not be given to group $node_group"
    chmod "$node_mode" "$1" || fail 6 "$1 could not be made $node_mode"
}

open_nodes() {
    open_node "/dev/vfio/$group"
    # Linux 6.6 and newer may make a second node for the function itself.
    for entry in "$function"/vfio-dev/*; do
        name=${entry##*/}
        [ ! -e "$entry/dev" ] || open_node "/dev/vfio/devices/$name"
    done
}

if [ $# -ne 1 ] || ! is_pci_address "$1"; then
    fail 2 "usage: $0 DOMAIN:BUS:DEVICE.FUNCTION, as in 0000:00:04.0 (got: $*)"
fi
address=$1
function=/sys/bus/pci/devices/$address
[ -e "$function" ] || fail 3 "no such PCI function"

require_iommu
load_modules
allow_unsafe_interrupts
mark_group
bind_function
open_nodes
echo "$address is on vfio-pci, /dev/vfio/$group is open ($node_mode${node_group:+, group $node_group})"
