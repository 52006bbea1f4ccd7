#!/bin/sh
# Tries `senergy setup` on a fresh Debian 12 booted by systemd, with real daemons of Slurm:
#   tests/cluster/setup.sh [SITE]
#
# SITE is a directory of tests/setup_sites, which is laid over the root; without it the cluster has
# the smallest slurm.conf. Installs the working tree with pip and `make install-hooks`, runs setup for the
# controller and the node, a job, setup again, and undo. Compares /etc before and after.
# SETUP_ROOT=DIR copies a root of Debian 12 instead of making one; needs root, the network and cgroup2.
# Exit: 0 setup does what docs/setup.md says; 1 it does not; 2 bad usage; 4 the system cannot be had.
set -eu

program=setup-test
debian=12
site=${1:-}
[ "$(id -u)" = 0 ] || { echo "$program: needs root: namespaces" >&2; exit 2; }
repository=$(cd "$(dirname "$0")/../.." && pwd)
[ -z "$site" ] || [ -d "$repository/tests/setup_sites/$site" ] || { echo "$program: no site $site" >&2; exit 2; }
. "$repository/tests/cluster/booted_root.sh"

new_root "${SETUP_ROOT:-}" "python3 python3-venv lua5.4"
mkdir -p "$root/opt/slurm"
mkdir -p "$root/srv/source"
(cd "$repository" && git ls-files -z --cached --others --exclude-standard |
    tar --create --null --files-from=- --ignore-failed-read) | tar --extract --directory "$root/srv/source"
[ -e "$repository/spank/energy.so" ] || fail "run make build first" "" 4
chrooted 'python3 -m venv /opt/slurm-energy && /opt/slurm-energy/bin/pip install -q /srv/source' >"$work/log" 2>&1 ||
    fail "pip install:" "$work/log" 4
make -C "$repository" install-hooks DESTDIR="$root" >"$work/log" 2>&1 || fail "make install-hooks:" "$work/log" 4
ln -sf -t "$root/usr/local/bin" /opt/slurm-energy/bin/senergy /opt/slurm-energy/bin/senergyd \
    /opt/slurm-energy/bin/senergyctld
[ -z "$site" ] || lay_site "$repository/tests/setup_sites/$site"
boot_root
tree() { # the files of the site with their contents, owners and modes
    inside 'find /etc /opt/slurm -xdev -printf "%M %U:%G %p %l\n" | LC_ALL=C sort
        find /etc /opt/slurm -xdev -type f -exec sha256sum {} + | LC_ALL=C sort -k 2'
}
setup() { # CODE ARGUMENTS: exit code of senergy setup
    wanted=$1
    shift
    code=0
    echo "senergy setup $*"
    inside "senergy setup $*" >"$work/log" 2>&1 || code=$?
    cp "$work/log" "$work/last"
    [ -z "${VERBOSE:-}" ] || cat "$work/log"
    [ "$code" = "$wanted" ] || { inside "journalctl --no-pager -n 30" >>"$work/log" 2>&1 || true
        fail "senergy setup $*: exit code $code, expected $wanted" "$work/log"; }
}
tree >"$work/before"
setup 0 controller --yes
setup 0 node --yes
wait_for "the node is idle" 'sinfo -h -o %T | grep -qx idle'
expect "daemons run and are enabled" 'systemctl is-active senergyctld senergyd; systemctl is-enabled senergyctld senergyd'
expect "slurmctld runs the script" "scontrol show config | grep 'JobSubmitPlugins.*lua'"
expect "prologs run at allocation" "scontrol show config | grep -i 'PrologFlags *= *.*\(Alloc\|Contain\)'"
expect "a job" 'timeout 60 srun --energy-policy=monitor sleep 3'
wait_for "the record of the job" 'senergy acct -X | grep -q monitor'
expect "a wrong policy is rejected" '! timeout 60 sbatch --energy-policy=nonsense --wrap=true'
tree >"$work/once"
setup 0 controller --yes
grep -q "nothing to change" "$work/last" || fail "a second run changes something" "$work/last"
setup 0 node --yes
grep -q "nothing to change" "$work/last" || fail "a second run changes something" "$work/last"
tree | diff "$work/once" - >"$work/log" || fail "a second run changed files" "$work/log"
setup 0 undo --yes
wait_for "the node is idle" 'sinfo -h -o %T | grep -qx idle'
expect "jobs run after undo" 'timeout 60 srun -n1 true'
expect "daemons are stopped" '! systemctl is-active senergyctld; ! systemctl is-active senergyd'
tree | diff "$work/before" - >"$work/log" || fail "undo did not restore /etc" "$work/log"
expect "nothing failed" '[ -z "$(systemctl list-units --failed --plain --no-legend)" ]'
expect "only data is left" '[ ! -e /run/senergy ] && [ ! -e /run/senergyctld ] && [ ! -e /var/lib/senergy-setup ]'
echo "setup and undo${site:+ at the site $site}: ok"
