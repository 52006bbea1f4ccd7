#!/bin/sh
# Follows docs/install.md literally on a fresh Debian: every code block, from the first line to "Going back".
#   tests/cluster/install-docs.sh 12|13
#
# Makes a root of that Debian with debootstrap in a temporary directory (about 1.5 GB, four minutes), with Slurm,
# munge and a cluster of one node, runs section 1 there with this machine's network, then boots it with systemd as
# PID 1 in namespaces of its own and runs the rest. Needs root, the network and cgroup2. Leaves nothing behind.
# INSTALL_DOCS_ROOT=DIR copies a root of that Debian instead of making one.
# Exit: 0 every block did what the page says; 1 one did not; 2 bad usage; 4 the system cannot be had.
set -eu

case ${1:-} in
12) suite=bookworm ;;
13) suite=trixie ;;
*)
    echo "usage: $0 12|13" >&2
    exit 2
    ;;
esac
[ "$(id -u)" = 0 ] || { echo "install-docs: needs root: namespaces" >&2; exit 2; }

repository=$(cd "$(dirname "$0")/../.." && pwd)
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
packages="systemd systemd-sysv dbus slurmctld slurmd slurm-client munge python3 python3-venv git make procps
    iproute2 ca-certificates"
path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
work=$(mktemp -d /var/tmp/install-docs.XXXXXX)
root=$work/root
group=$work/cgroup
booted=

cleanup() {
    [ -z "$booted" ] || { kill -9 "$booted" 2>/dev/null; wait "$booted" 2>/dev/null; } || true
    if [ -d "$group/install-docs.$$" ]; then
        for _ in 1 2 3 4 5 6 7 8 9 10; do
            find "$group/install-docs.$$" -depth -type d -exec rmdir {} \; 2>/dev/null || true
            [ -d "$group/install-docs.$$" ] || break
            sleep 1
        done
    fi
    umount "$group" 2>/dev/null || true
    rm -rf --one-file-system "$work"
}
trap cleanup EXIT
trap 'exit 1' HUP INT TERM

fail() { # MESSAGE [LOG [CODE]]
    echo "install-docs: $1" >&2
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
boot() {
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

# Runs a command in the booted system, in the directory where the block before it ended.
inside() { # COMMAND
    nsenter --target "$init" --mount --pid --net --uts --ipc --cgroup /usr/bin/env -i LC_ALL=C.UTF-8 HOME=/root \
        PATH="$path" PIP_NO_INDEX=1 PIP_FIND_LINKS=/srv/wheels timeout 280 /bin/sh -euc "$1" </dev/null
}

expect() { # WHAT COMMAND: fails with the journal unless the command in the booted system succeeds
    inside "$2" >"$work/log" 2>&1 || {
        inside "journalctl --no-pager -n 40" >>"$work/log" 2>&1 || true
        fail "after section '$section': expected: $1" "$work/log"
    }
}

# Waits up to 60 s for a condition in the booted system.
wait_for() { # WHAT COMMAND
    expect "$1" "for i in \$(seq 120); do if $2; then exit 0; fi; sleep 0.5; done; $2"
}

script=/usr/share/debootstrap/scripts/$suite
[ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid # newer than debootstrap
command -v debootstrap >/dev/null || fail "no debootstrap" "" 4
mkdir "$group"
mount -t cgroup2 cgroup2 "$group" || fail "no cgroup2" "" 4
mkdir "$group/install-docs.$$"
if [ -n "${INSTALL_DOCS_ROOT:-}" ]; then
    cp -a "$INSTALL_DOCS_ROOT" "$root"
else
    echo "Making a root of Debian $suite"
    unshare --mount --propagation private debootstrap --variant=minbase "$suite" "$root" "$mirror" "$script" \
        >"$work/log" 2>&1 || fail "debootstrap $suite from $mirror failed:" "$work/log" 4
fi
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d" "$work"
printf '127.0.0.1 localhost\n192.0.2.1 node1\n' >"$root/etc/hosts"
echo node1 >"$root/etc/hostname"
cp /etc/resolv.conf "$root/etc/resolv.conf"
# A mirror may be a snapshot, whose release files have expired.
echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/snapshot"
chrooted "apt-get -q update; apt-get install -q -y --no-install-recommends $(echo $packages)" >"$work/log" 2>&1 ||
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

# The repository as it is here, uncommitted changes included.
mkdir -p "$root/srv/source"
(cd "$repository" && git ls-files -z --cached --others --exclude-standard |
    tar --create --null --files-from=- --ignore-failed-read) | tar --extract --directory "$root/srv/source"
chrooted 'cd /srv/source; git init -q; git add -A; git -c user.name=x -c user.email=x@x commit -qm x
    git clone -q --bare . /srv/slurm-energy.git' >"$work/log" 2>&1 || fail "no repository in the root:" "$work/log"
rm -rf "$root/srv/source"

mkdir "$root/srv/blocks"
python3 "$repository/tests/cluster/install_blocks.py" "$repository/docs/install.md" "$root/srv/blocks" \
    REPOSITORY=/srv/slurm-energy.git CLUSTER=docs CONTROLLER=node1 >"$work/blocks" || fail "docs/install.md" "$work/blocks"
find "$root/etc" "$root/opt" "$root/usr" "$root/var" "$root/root" -xdev -iname '*energy*' | sort >"$work/before"

echo "Section 1 on $version, $(chroot "$root" /usr/bin/python3 --version)"
echo /root >"$root/srv/cwd"
section=1
for number in $(sed -n 's/^\([0-9]*\) run 1\. .*/\1/p' "$work/blocks"); do
    chrooted "cd \"\$(cat /srv/cwd)\"; . /srv/blocks/$number.run; pwd >/srv/cwd" >"$work/log" 2>&1 || {
        cat "$root/srv/blocks/$number.run" >&2
        fail "this block of section 1 failed:" "$work/log"
    }
done
chrooted '/opt/slurm-energy/bin/pip download -q -d /srv/wheels "setuptools>=66" wheel /root/slurm-energy' \
    >"$work/log" 2>&1 || fail "pip download:" "$work/log"

echo "Booting $(chroot "$root" /usr/bin/systemctl --version | head -n 1)"
(echo 0 >"$group/install-docs.$$/cgroup.procs" && boot) &
booted=$!
for _ in $(seq 100); do
    init=$(cat /proc/"$booted"/task/"$booted"/children 2>/dev/null | tr -d ' ')
    [ -n "$init" ] && [ "$(cat "/proc/$init/comm")" = systemd ] && break
    sleep 0.2
done
[ -n "${init:-}" ] || fail "systemd does not start:" "$work/boot" 4
wait_for "systemd is up" 'systemctl is-system-running | grep -q -e running -e degraded'
wait_for "the node is idle before anything is installed" 'sinfo -h -o %T | grep -qx idle'

check() { # SECTION: what the page promises beyond exit code 0
    case $1 in
    3.*)
        expect "senergyctld serves, enabled" "systemctl is-active senergyctld; systemctl is-enabled senergyctld"
        expect "readiness" "systemctl show -p Type,StatusText senergyctld | grep 'StatusText=Listening'"
        expect "priorities in the journal" "journalctl -u senergyctld -o json | grep -q '\"PRIORITY\":\"6\"'"
        expect "slurmctld has the script" "scontrol show config | grep 'JobSubmitPlugins *= *lua'"
        ;;
    4.*)
        expect "senergyd serves, before slurmd" "systemctl is-active senergyd
            systemctl show -p StatusText senergyd | grep 'StatusText=Serving node1'
            systemctl show -p Before senergyd | grep slurmd.service"
        ;;
    5.*)
        # Both are started in one transaction, as at boot.
        expect "slurmd starts after senergyd is ready" 'systemctl stop slurmd senergyd
            systemctl start multi-user.target
            for i in $(seq 120); do systemctl is-active slurmd senergyd && break; sleep 0.5; done
            systemctl is-active slurmd senergyd
            ready=$(systemctl show -p ActiveEnterTimestampMonotonic --value senergyd)
            [ "$ready" -le "$(systemctl show -p ExecMainStartTimestampMonotonic --value slurmd)" ]'
        expect "slurmd starts though senergyd cannot" 'systemctl stop slurmd senergyd
            cp /etc/slurm/energy.toml /tmp/right.toml; echo nonsense >>/etc/slurm/energy.toml
            systemctl start multi-user.target
            for i in $(seq 120); do systemctl is-active slurmd && break; sleep 0.5; done
            systemctl is-active slurmd; if systemctl is-active senergyd; then exit 1; fi
            journalctl -u senergyd -p err -o cat | grep -q energy.toml
            cp /tmp/right.toml /etc/slurm/energy.toml; systemctl start senergyd'
        expect "a hung senergyd is started again" 'mkdir -p /run/systemd/system/senergyd.service.d
            printf "[Service]\nWatchdogSec=3\n" >/run/systemd/system/senergyd.service.d/watchdog.conf
            systemctl daemon-reload; systemctl restart senergyd
            hung=$(systemctl show -p MainPID --value senergyd); systemctl kill -s STOP senergyd
            for i in $(seq 120); do
                now=$(systemctl show -p MainPID --value senergyd)
                [ "$now" = "$hung" ] || [ "$now" = 0 ] || ! systemctl is-active senergyd || break
                sleep 0.5
            done
            [ "$now" != "$hung" ]; systemctl is-active senergyd
            rm -r /run/systemd/system/senergyd.service.d; systemctl daemon-reload; systemctl restart senergyd'
        ;;
    6.*)
        wait_for "the record of the job" "senergy acct -X | grep -q monitor"
        expect "no error line of ours" "srun -n1 true 2>&1 | { ! grep -i energy; }"
        expect "a step and the job were announced" "senergy acct | grep -q '1\\.0'"
        ;;
    Upgrading*)
        expect "daemons run" "systemctl is-active senergyctld senergyd; senergy status"
        ;;
    *back*)
        expect "jobs run" "srun -n1 true"
        expect "nothing failed" "[ -z \"\$(systemctl list-units --failed --plain --no-legend)\" ]"
        ;;
    esac
    wait_for "the node is idle" 'sinfo -h -o "%T %E" | grep -qx "idle none"'
}

# senergy doctor exits with 1 where hardware is missing, as in here; other findings are errors.
doctor() {
    inside 'senergy doctor --quiet' >"$work/log" 2>&1 || true
    if grep -v -e '^degraded: energy cpu' -e '^degraded: interface' -e '^degraded: knobs' "$work/log" >&2; then
        fail "senergy doctor finds these faults"
    fi
}

previous=
while read -r number action section; do
    case $section in 1.*) continue ;; esac
    if [ -n "$previous" ] && [ "$previous" != "$section" ]; then
        check "$previous"
    fi
    [ "$previous" = "$section" ] || echo "Section $section"
    previous=$section
    block=/srv/blocks/$number.$action
    case $action in
    file | append)
        target=$(cat "$root/srv/blocks/$number.target")
        redirect=$([ "$action" = file ] && echo '>' || echo '>>')
        inside "cat $block $redirect $target"
        continue
        ;;
    esac
    if grep -q 'senergy doctor' "$root$block"; then
        doctor_wanted=yes
        sed -i '/senergy doctor/d' "$root$block"
    fi
    code=0
    inside "cd \"\$(cat /srv/cwd)\"; . $block; pwd >/srv/cwd" >"$work/log" 2>&1 || code=$?
    case $action in
    run) [ "$code" = 0 ] || { cat "$root$block" >&2; inside "journalctl --no-pager -n 30" >>"$work/log" 2>&1
        fail "exit code $code of this block in '$section':" "$work/log"; } ;;
    fails) [ "$code" != 0 ] && [ "$(wc -l <"$work/log")" = 1 ] || fail "'$section': not refused in one line:" "$work/log" ;;
    esac
    if [ "${doctor_wanted:-}" ]; then
        wait_for "the node is idle" 'sinfo -h -o %T | grep -qx idle'
        doctor
        doctor_wanted=
    fi
done <"$work/blocks"
check "$previous"
find "$root/etc" "$root/opt" "$root/usr" "$root/var" -xdev -iname '*energy*' | sort >"$work/after"
grep -v "^$root/root" "$work/before" | diff - "$work/after" >"$work/log" || fail "left after 'Going back':" "$work/log"
expect "nothing of ours in /run" "[ -z \"\$(find /run -name '*senergy*')\" ]"
echo "Debian $1: every block of docs/install.md does what it says"
