# No plan needs every function.
# shellcheck disable=SC2317,SC2329
set -eu
umask 022
PATH=/usr/sbin:/usr/bin:/sbin:/bin
LC_ALL=C
export PATH LC_ALL
changed=0
status=0

say() { printf 'tpu-image: %s\n' "$1" >&2; }
stop() { say "$1"; exit 1; }
hash_of() { sha256sum < "$1" | cut -d ' ' -f 1; }
state_of() { stat -c '%a %u:%g' -- "$1"; }

# expect PATH BEFORE AFTER: stops where PATH holds neither what it was nor what it is to become.
expect() {
    [ -e "$1" ] || return 0
    [ -f "$1" ] || stop "$1 is no regular file; nothing was changed"
    if [ -n "$2" ] && [ -z "${FORCE-}" ]; then
        case " $2 $3 " in
        *" $(hash_of "$1") "*) ;;
        *) stop "$1 is not the file this was made for; render it again for this machine, or set FORCE=1" ;;
        esac
    fi
}

# directory PATH MODE OWNER: has a directory there. One that exists keeps its mode and owner.
directory() {
    [ -d "$1" ] && return 0
    mkdir -- "$1"
    chown "$3" -- "$1"
    chmod "$2" -- "$1"
    changed=1
}

# permissions PATH MODE OWNER: gives a directory its mode and owner.
permissions() {
    [ "$(state_of "$1")" = "$2 $3" ] && return 0
    chown "$3" -- "$1"
    chmod "$2" -- "$1"
    changed=1
}

# place PATH NEW: puts the file NEW at PATH if it differs; one that was not foreseen is kept beside it.
place() {
    if [ -f "$1" ] && cmp -s -- "$1" "$2" && [ "$(state_of "$1")" = "$(state_of "$2")" ]; then
        rm -f -- "$2"
        return 0
    fi
    mv -f -- "$2" "$1"
    changed=1
    say "wrote $1"
}

# keep PATH: copies a file of someone else's aside, once.
keep() {
    if [ -f "$1" ] && [ ! -e "$1.before-tpu-image" ] && ! cmp -s -- "$1" "$2"; then
        cp -p -- "$1" "$1.before-tpu-image"
        say "kept the former $1 as $1.before-tpu-image"
    fi
}

# file PATH MODE OWNER ENCODING FORESEEN: gives PATH the content of standard input.
file() {
    path=$1
    [ ! -L "$path" ] || path=$(readlink -f -- "$path")
    new=$path.tpu-image-new
    if [ "$4" = packed ]; then base64 -d | gzip -dc > "$new"; else cat > "$new"; fi
    chown "$3" -- "$new"
    chmod "$2" -- "$new"
    if [ "$5" = no ]; then keep "$path" "$new"; fi
    place "$path" "$new"
}

# lines PATH MODE OWNER: adds the lines of standard input that PATH lacks.
lines() {
    new=$1.tpu-image-new
    if [ -e "$1" ]; then
        cp -p -- "$1" "$new"
        [ -z "$(tail -c 1 -- "$new")" ] || echo >> "$new"
    else
        : > "$new"
        chown "$3" -- "$new"
        chmod "$2" -- "$new"
    fi
    while IFS= read -r line; do
        grep -qxF -e "$line" -- "$new" || printf '%s\n' "$line" >> "$new"
    done
    place "$1" "$new"
}

# link PATH TARGET OWNER: has a symbolic link there.
link() {
    [ "$(readlink -- "$1" || :)" = "$2" ] && return 0
    if [ -d "$1" ] && [ ! -L "$1" ]; then stop "$1 is a directory, not a link"; fi
    ln -sfn -- "$2" "$1"
    chown -h "$3" -- "$1"
    changed=1
    say "linked $1"
}

# absent PATH: has nothing there.
absent() {
    if [ -e "$1" ] || [ -L "$1" ]; then
        rm -f -- "$1"
        changed=1
        say "removed $1"
    fi
}

# activate SECONDS WHY COMMAND...: runs what makes the changes take effect.
activate() {
    seconds=$1 why=$2
    shift 2
    if ! command -v "$1" > /dev/null; then
        say "$1 is not installed; it is needed to $why"
        status=1
    elif ! timeout "$seconds" "$@" < /dev/null >&2; then
        say "failed to $why: $*"
        status=1
    fi
}

running() { [ -d /run/systemd/system ] && ! systemd-detect-virt --quiet --chroot; }

[ "$(id -u)" = 0 ] || stop "only root can change a system: run it with sudo"
