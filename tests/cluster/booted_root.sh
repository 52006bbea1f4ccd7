# Functions for scripts that try an installation on a fresh Debian booted by systemd. To be sourced, with `set -eu`.
#
# The caller sets `program` (name in messages) and `debian` (12 or 13), and calls in this order:
#   new_root DIR|""       a root of that Debian: a copy of DIR, or one made by debootstrap (four minutes)
#   chrooted COMMAND      in the root with this machine's network, nothing booted
#   boot_root             boots it as host node1 without a network, in namespaces of its own; sets `init`
#   inside COMMAND        in the booted system, for at most INSIDE_TIMEOUT_S (280) seconds
# Needs root, the network and cgroup2. Everything lies in $work and is removed at exit.
# Exit codes of `fail`: 1 a fault was found; 4 the system cannot be had.

mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
case $debian in
12) suite=bookworm ;;
13) suite=trixie ;;
esac
work=$(mktemp -d "/var/tmp/$program.XXXXXX")
chmod 755 "$work"
root=$work/root
group=$work/cgroup
booted=
init=

shut_down() {
    [ -n "$booted" ] || return 0
    kill -9 "$booted" 2>/dev/null || true
    wait "$booted" 2>/dev/null || true
    booted=
}

cleanup() {
    shut_down
    if [ -d "$group/$program.$$" ]; then
        for _ in 1 2 3 4 5 6 7 8 9 10; do
            find "$group/$program.$$" -depth -type d -exec rmdir {} \; 2>/dev/null || true
            [ -d "$group/$program.$$" ] || break
            sleep 1
        done
    fi
    umount "$group" 2>/dev/null || true
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 1' HUP INT TERM

fail() { # MESSAGE [LOG [CODE]]
    echo "$program: $1" >&2
    [ -z "${2:-}" ] || tail -n 60 "$2" >&2
    exit "${3:-1}"
}

# Runs a shell command with the root as its / and this machine's network.
chrooted() { # COMMAND
    # shellcheck disable=SC2016 # expands in the inner shells
    unshare --mount --pid --fork --kill-child --propagation private /bin/sh -euc '
        root=$1
        mount -t tmpfs tmpfs "$root/dev"
        for name in null zero full random urandom tty; do
            touch "$root/dev/$name"
            mount --bind "/dev/$name" "$root/dev/$name"
        done
        ln -s /proc/self/fd "$root/dev/fd"
        mount -t proc proc "$root/proc"
        exec chroot "$root" /usr/bin/env -i LC_ALL=C.UTF-8 HOME=/root DEBIAN_FRONTEND=noninteractive PATH="$3" \
            PIP_CERT=/etc/ssl/certs/ca-certificates.crt /bin/sh -euc "$2"
    ' sh "$root" "$1" "$path" </dev/null
}

# Boots the root with systemd; prints nothing, never returns.
run_systemd() {
    # shellcheck disable=SC2016 # expands in the inner shell
    exec unshare --mount --pid --net --uts --ipc --cgroup --fork --kill-child --propagation private /bin/sh -euc '
        root=$1
        hostname node1
        ip link set lo up
        ip address add 192.0.2.1/32 dev lo # with 127.0.0.1 alone getaddrinfo(AI_ADDRCONFIG) finds nothing
        mount --bind "$root" "$root"
        mount -t tmpfs -o mode=755 tmpfs "$root/dev"
        mkdir "$root/dev/pts" "$root/dev/shm"
        for name in null zero full random urandom tty; do
            touch "$root/dev/$name"
            mount --bind "/dev/$name" "$root/dev/$name"
        done
        ln -s /proc/self/fd "$root/dev/fd"
        mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts "$root/dev/pts"
        ln -s pts/ptmx "$root/dev/ptmx"
        mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
        mount -t tmpfs -o mode=755 tmpfs "$root/run"
        mkdir "$root/run/lock"
        mount -t sysfs sysfs "$root/sys"
        mount -t proc proc "$root/proc"
        mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
        cd "$root"
        mkdir -p old
        pivot_root . old
        umount -l /old
        exec /usr/bin/env -i container=other LC_ALL=C.UTF-8 PATH="$2" /lib/systemd/systemd --system \
            --log-target=journal
    ' sh "$root" "$path" </dev/null >"$work/boot" 2>&1
}

# Runs a command in the booted system.
# Lays the configuration of an existing site over the root. A site with its slurm.conf in /opt/slurm/etc names it in
# the environment of its users.
lay_site() { # DIRECTORY
    cp -a "$1/." "$root/"
    [ -e "$root/opt/slurm/etc/slurm.conf" ] || return 0
    slurm_conf=/opt/slurm/etc/slurm.conf
    rm "$root/etc/slurm/slurm.conf"
    cp "$root/etc/slurm/cgroup.conf" "$root/opt/slurm/etc/"
}

slurm_conf=
inside() { # COMMAND
    nsenter --target "$init" --mount --pid --net --uts --ipc --cgroup /usr/bin/env -i LC_ALL=C.UTF-8 HOME=/root \
        PATH="$path" PIP_NO_INDEX=1 PIP_FIND_LINKS=/srv/wheels DEBIAN_FRONTEND=noninteractive \
        ${slurm_conf:+"SLURM_CONF=$slurm_conf"} \
        timeout "${INSIDE_TIMEOUT_S:-280}" /bin/sh -euc "$1" </dev/null
}

expect() { # WHAT COMMAND: fails with the journal unless the command in the booted system succeeds
    inside "$2" >"$work/log" 2>&1 || {
        inside "journalctl --no-pager -n 40" >>"$work/log" 2>&1 || true
        fail "${section:+after section '$section': }expected: $1" "$work/log"
    }
}

# Waits up to 60 s for a condition in the booted system.
wait_for() { # WHAT COMMAND
    expect "$1" "for i in \$(seq 120); do if $2; then exit 0; fi; sleep 0.5; done; $2"
}

new_root() { # DIR|"" PACKAGES: with systemd, Slurm and these packages
    script=/usr/share/debootstrap/scripts/$suite
    [ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid # newer than debootstrap
    mkdir "$group"
    mount -t cgroup2 cgroup2 "$group" || fail "no cgroup2" "" 4
    mkdir "$group/$program.$$"
    if [ -n "$1" ]; then
        cp -a "$1" "$root"
    else
        command -v debootstrap >/dev/null || fail "no debootstrap" "" 4
        echo "Making a root of Debian $suite"
        unshare --mount --propagation private debootstrap --variant=minbase "$suite" "$root" "$mirror" "$script" \
            >"$work/log" 2>&1 || fail "debootstrap $suite from $mirror failed:" "$work/log" 4
    fi
    printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
    chmod 755 "$root/usr/sbin/policy-rc.d"
    printf '127.0.0.1 localhost\n192.0.2.1 node1\n' >"$root/etc/hosts"
    echo node1 >"$root/etc/hostname"
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    # A mirror may be a snapshot, whose release files have expired.
    echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/snapshot"
    chrooted "apt-get -q update; apt-get install -q -y --no-install-recommends systemd systemd-sysv dbus procps \
        iproute2 ca-certificates slurmctld slurmd slurm-client munge $2" >"$work/log" 2>&1 ||
        fail "apt-get install in the root failed:" "$work/log" 4
    rm "$root/usr/sbin/policy-rc.d"
    ln -sf /dev/null "$root/etc/systemd/system/systemd-modules-load.service" # no modules in here
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
    version=$(chroot "$root" /usr/sbin/slurmctld -V)
    case $version in
    *" 22."*) plugin=cgroup/v1 ;; # it would look at the machine's groups otherwise; nothing here uses them
    *) plugin=disabled ;;
    esac
    echo "CgroupPlugin=$plugin" >"$root/etc/slurm/cgroup.conf"
    cat >"$root/etc/slurm/slurm.conf" <<CONF
ClusterName=docs
SlurmctldHost=node1
SlurmUser=slurm
AuthType=auth/munge
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
NodeName=node1 CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
CONF
}

boot_root() {
    echo "Booting $(chroot "$root" /usr/bin/systemctl --version | head -n 1)"
    (echo 0 >"$group/$program.$$/cgroup.procs" && run_systemd) &
    booted=$!
    for _ in $(seq 100); do
        init=$(cat /proc/"$booted"/task/"$booted"/children 2>/dev/null | tr -d ' ')
        [ -n "$init" ] && [ "$(cat "/proc/$init/comm")" = systemd ] && break
        sleep 0.2
    done
    [ -n "$init" ] || fail "systemd does not start:" "$work/boot" 4
    wait_for "systemd is up" 'systemctl is-system-running | grep -q -e running -e degraded'
    wait_for "the node is idle before anything is installed" 'sinfo -h -o %T | grep -qx idle'
}
