#!/bin/sh
# Installs the packages on a fresh Debian, upgrades, removes and purges them, and lets Slurm's packages trigger builds:
#   tests/packages/life-cycle.sh 12|13 PACKAGES [UPGRADE]
#
# PACKAGES is a directory with the packages of that Debian, UPGRADE one with a higher version (make packages REVISION=2).
# Makes a root with debootstrap in a temporary directory (three minutes), or copies LIFE_CYCLE_ROOT=DIR. Nothing is
# booted: tests/cluster/three-commands.sh does that. Needs root and the network. Leaves nothing behind.
# Exit: 0 all of this holds; 1 something does not; 2 bad usage; 4 the system cannot be had.
set -eu

debian=${1:-}
packages=${2:-}
upgrade=${3:-}
case $debian in
12 | 13) ;;
*) packages= ;;
esac
if [ ! -d "$packages" ] || { [ -n "$upgrade" ] && [ ! -d "$upgrade" ]; }; then
    echo "usage: $0 12|13 PACKAGES [UPGRADE]" >&2
    exit 2
fi
[ "$(id -u)" = 0 ] || { echo "life-cycle: needs root: namespaces" >&2; exit 2; }

program=life-cycle
repository=$(cd "$(dirname "$0")/../.." && pwd)
. "$repository/tests/cluster/booted_root.sh"
new_root "${LIFE_CYCLE_ROOT:-}" "python3 gcc libc6-dev libslurm-dev"
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
mkdir "$root/srv/packages" "$root/srv/upgrade"
cp "$packages"/*"deb$debian"*.deb "$root/srv/packages/"
[ -z "$upgrade" ] || cp "$upgrade"/*"deb$debian"*.deb "$root/srv/upgrade/"
include=$root/etc/slurm/slurm-energy.conf
echo '# Slurm refuses an empty file' >"$include"
echo 'Include slurm-energy.conf' >>"$root/etc/slurm/slurm.conf"

step() { # WHAT COMMAND
    echo "$1"
    chrooted "$2" >"$work/log" 2>&1 || fail "$1: exit code other than 0" "$work/log"
}
holds() { # WHAT COMMAND
    chrooted "$2" >"$work/holds" 2>&1 || fail "not so: $1" "$work/holds"
}
ours() { # FILE: every file of the root with our name, without the packages
    (cd "$root" && find . -xdev \( -path ./proc -o -path ./srv -o -path ./var/log -o -path ./var/lib/dpkg -o -path ./dev \) \
        -prune -o \( -name '*senergy*' -o -name '*slurm-energy*' \) -print) | LC_ALL=C sort >"$1"
}

ours "$work/before"
step "Install" 'cd /srv/packages; apt-get -q -y install ./*.deb'
! grep -q -i -e 'error:' -e 'subprocess returned' "$work/log" || fail "the installation prints errors" "$work/log"
holds "the link is for the installed series" 'series=$(scontrol --version | sed "s/^[^ ]* \([0-9]*[.][0-9]*\).*/\1/")
    [ "$(readlink /usr/lib/slurm-energy/energy.so)" = "slurm-$series/energy.so" ]'
holds "no other Python is visible" 'directory=$(mktemp -d)
    echo "raise SystemExit(9)" >"$directory/slurm_energy.py"
    cd "$directory"; PYTHONPATH=$directory senergy --version; rm -r "$directory"'
holds "units are installed and not enabled" '[ -e /usr/lib/systemd/system/senergyd.service ]
    [ ! -e /etc/systemd/system/multi-user.target.wants/senergyd.service ]
    [ ! -e /etc/systemd/system/multi-user.target.wants/senergyctld.service ]'
holds "srun knows the flags" 'mkdir -p /etc/slurm/plugstack.conf.d
    echo "include /usr/lib/slurm-energy/plugstack.d/*.conf" >/etc/slurm/plugstack.conf; srun --help | grep -q energy-policy'

stale='printf "const unsigned int plugin_version = 0x160501;\n" >/tmp/p.c
    gcc -shared -fPIC -o "$(echo /usr/lib/*/slurm-wlm)/acct_gather_energy_senergy.so" /tmp/p.c; rm /tmp/p.c'
step "Enable the energy plugin" 'senergy build-plugins --enable'
step "Upgrade of Slurm builds the plugin again" "$stale; apt-get -q -y --reinstall install slurm-wlm-basic-plugins"
grep -q '^AcctGatherEnergyType=' "$include" || fail "the plugin is not named" "$include"
holds "the plugin fits" 'senergy build-plugins --check'
step "Upgrade of Slurm without a compiler" "$stale; mv /usr/bin/gcc /usr/bin/gcc.away
    apt-get -q -y --reinstall install slurm-wlm-basic-plugins"
[ "$(grep -c 'senergy: error:' "$work/log")" = 1 ] || fail "not one line about the missing compiler" "$work/log"
! grep -q '^AcctGatherEnergyType=' "$include" || fail "the plugin is named although it does not fit" "$include"
step "The next boot builds it" 'mv /usr/bin/gcc.away /usr/bin/gcc; senergy build-plugins --update'
grep -q '^AcctGatherEnergyType=' "$include" || fail "the plugin is not named" "$include"

if [ -n "$upgrade" ]; then
    step "Upgrade" 'cd /srv/upgrade; apt-get -q -y install ./*.deb'
    holds "the plugin still fits" 'senergy build-plugins --check'
fi
step "Remove" "apt-get -q -y remove 'slurm-energy*'; rm /etc/slurm/plugstack.conf; rmdir /etc/slurm/plugstack.conf.d"
! grep -q '^[^#]' "$include" || fail "slurm.conf names plugins after removal" "$include"
holds "no file of ours is left in /usr" '[ -z "$(find /usr -name "*senergy*" -o -name "*slurm-energy*")" ]'
step "Purge" "touch /var/lib/senergyctld/records.db; apt-get -q -y purge 'slurm-energy*'"
[ "$(grep -c 'remain in /var/lib/senergyctld' "$work/log")" = 1 ] || fail "purge does not name the database" "$work/log"
ours "$work/after"
diff "$work/before" "$work/after" | grep '^[<>]' | grep -v -x '> ./var/lib/senergyctld' >"$work/log" || true
[ ! -s "$work/log" ] || fail "left after purge:" "$work/log"
echo "Debian $debian: packages install, upgrade and go; only the database is left"
