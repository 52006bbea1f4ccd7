#!/bin/sh
# Follows docs/install-by-hand.md literally on a fresh Debian: every code block, from the first line to "Going back".
#   tests/cluster/install-docs.sh 12|13
#
# Makes a root of that Debian with debootstrap in a temporary directory (about 1.5 GB, four minutes), with Slurm,
# munge and a cluster of one node, runs section 1 there with this machine's network, then boots it with systemd as
# PID 1 in namespaces of its own and runs the rest. Needs root, the network and cgroup2. Leaves nothing behind.
# INSTALL_DOCS_ROOT=DIR copies a root of that Debian instead of making one.
# Exit: 0 every block did what the page says; 1 one did not; 2 bad usage; 4 the system cannot be had.
set -eu

debian=${1:-}
case $debian in
12 | 13) ;;
*)
    echo "usage: $0 12|13" >&2
    exit 2
    ;;
esac
[ "$(id -u)" = 0 ] || { echo "install-docs: needs root: namespaces" >&2; exit 2; }

program=install-docs
repository=$(cd "$(dirname "$0")/../.." && pwd)
. "$repository/tests/cluster/booted_root.sh"
new_root "${INSTALL_DOCS_ROOT:-}" "python3 python3-venv git make"

# The repository as it is here, uncommitted changes included.
mkdir -p "$root/srv/source"
(cd "$repository" && git ls-files -z --cached --others --exclude-standard |
    tar --create --null --files-from=- --ignore-failed-read) | tar --extract --directory "$root/srv/source"
chrooted 'cd /srv/source; git init -q; git add -A; git -c user.name=x -c user.email=x@x commit -qm x
    git clone -q --bare . /srv/slurm-energy.git' >"$work/log" 2>&1 || fail "no repository in the root:" "$work/log"
rm -rf "$root/srv/source"

mkdir "$root/srv/blocks"
python3 "$repository/tests/cluster/install_blocks.py" "$repository/docs/install-by-hand.md" "$root/srv/blocks" \
    REPOSITORY=/srv/slurm-energy.git CLUSTER=docs CONTROLLER=node1 >"$work/blocks" || fail "docs/install-by-hand.md" "$work/blocks"
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

boot_root

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
        expect "nothing failed" "systemctl list-units --failed --plain --no-legend >&2
            [ -z \"\$(systemctl list-units --failed --plain --no-legend)\" ]"
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
echo "Debian $1: every block of docs/install-by-hand.md does what it says"
