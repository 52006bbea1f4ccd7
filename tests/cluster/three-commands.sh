#!/bin/sh
# Installs slurm-energy from packages with three commands on a fresh Debian, uses it, and removes it.
#   tests/cluster/three-commands.sh 12|13 [SITE]
#
# Makes a root of that Debian with debootstrap in a temporary directory (about 3 GB, five minutes) with Slurm, munge
# and a cluster of one node, boots it with systemd as PID 1 in namespaces of its own, and runs what docs/install.md
# says: apt install ./*.deb, senergy setup controller --yes, senergy setup node --yes, and a job. Then senergy setup
# undo and apt purge; the files of the system must be those of before, except those that docs/packages.md lists.
# SITE is a directory whose tree is copied over / before Slurm starts: the configuration of an existing site.
# PACKAGES=DIR has the packages (dist/ without it: make packages DIST=... makes them).
# FORMAT=rpm: the rpm packages for Enterprise Linux 9 instead, with Debian's rpm and Python 3.11 (12 only), because
# no root of that distribution is to be had; what they require by name is installed before.
# INSTALL_DOCS_ROOT=DIR copies a root of that Debian instead of making one. KEEP_LOG=FILE: the output of each command.
# Needs root, the network and cgroup2. Leaves nothing behind.
# Exit: 0 all of this holds; 1 something does not; 2 bad usage; 4 the system cannot be had.
set -eu

debian=${1:-}
site=${2:-}
case $debian in
12 | 13) ;;
*)
    echo "usage: $0 12|13 [SITE]" >&2
    exit 2
    ;;
esac
[ -z "$site" ] || [ -d "$site" ] || { echo "three-commands: $site is not a directory" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "three-commands: needs root: namespaces" >&2; exit 2; }

program=three-commands
repository=$(cd "$(dirname "$0")/../.." && pwd)
. "$repository/tests/cluster/booted_root.sh"
packages=${PACKAGES:-$repository/dist}
format=${FORMAT:-deb}
case $format in
deb)
    needs=python3
    install='apt-get -q -y install ./*.deb'
    purge="apt-get -q -y purge 'slurm-energy*'"
    kept='senergyctld'
    ;;
rpm)
    needs="python3 rpm gcc make libc6-dev libslurm-dev"
    install='rpm -i --nodeps ./*.rpm'
    purge="rpm -e slurm-energy slurm-energy-analysis slurm-energy-node slurm-energy-controller slurm-energy-plugins \
    slurm-energy-lab"
    kept='senergy\(ctld\)\?' # rpm has no purge
    ;;
*)
    echo "three-commands: FORMAT is deb or rpm" >&2
    exit 2
    ;;
esac
listing=$work/listing
: "${KEEP_LOG:=$work/commands}"
: >"$KEEP_LOG"

# Lists every file of the root with its type, mode, owner and content. Logs, caches, the records of apt and dpkg,
# and the state of other programs change with every boot.
list_files() { # FILE
    (cd "$root" && find . -xdev \( -path ./proc -o -path ./sys -o -path ./run -o -path ./tmp -o -path ./srv \
        -o -path ./old -o -path ./dev -o -path ./var/log -o -path ./var/cache -o -path ./var/tmp -o -path ./var/lib/apt \
        -o -path ./var/lib/dpkg -o -path ./var/lib/ucf -o -path ./var/lib/rpm -o -path ./root/.rpmdb -o -path ./var/lib/systemd -o -path ./var/lib/slurm -o -path ./var/spool/slurm \
        -o -name __pycache__ -o -name '*.pyc' \) -prune -o \( -type f -print0 -o -true \) -printf '' \
        -fprintf "$1.modes" '%p %M %U:%G %l\n' | xargs -0 sha256sum) | sed 's/^\([^ ]*\) .\(.*\)/\2 \1/' >"$1.sums"
    LC_ALL=C sort "$1.sums" "$1.modes" >"$1"
}

# Runs one command of the page in the booted system and shows it, with its output, in the log.
command_of_the_page() { # COMMAND
    section=$1
    echo "# $1"
    {
        echo "# $1"
        inside "cd /srv/packages; $1"
    } >"$work/log" 2>&1 || {
        cat "$work/log" >>"$KEEP_LOG"
        inside "journalctl --no-pager -n 40" >>"$work/log" 2>&1 || true
        fail "exit code other than 0 of: $1" "$work/log"
    }
    cat "$work/log" >>"$KEEP_LOG"
}

new_root "${INSTALL_DOCS_ROOT:-}" "$needs"
mkdir "$root/srv/packages"
wanted="*deb$debian*.deb"
[ "$format" = deb ] || wanted="*.rpm"
# shellcheck disable=SC2086 # a pattern
cp "$packages"/$wanted "$root/srv/packages" || fail "no packages in $packages: make packages" "" 4
if [ -n "$site" ]; then
    lay_site "$site"
    chown -R --no-dereference 0:0 "$root/etc/slurm" "$root/opt"
fi
# The system is cut off from the network when it runs; what Debian itself has to supply is fetched before.
[ "$format" = rpm ] || chrooted 'cd /srv/packages; apt-get -q -y --download-only install ./*.deb' >"$work/log" 2>&1 ||
    fail "the packages cannot be installed:" "$work/log"
boot_root
inside 'systemctl is-active slurmctld slurmd' >"$work/log" 2>&1 || fail "Slurm does not run" "$work/log"
inside 'scontrol show config' | grep -v -e ^Configuration -e BOOT_TIME -e NEXT_JOB_ID >"$work/slurm-before"
list_files "$listing-before"

command_of_the_page "$install"
expect "jobs run while nothing is set up" "srun -n1 true"
expect "no daemon of ours runs before set-up" "! systemctl is-active senergyd senergyctld"
command_of_the_page 'senergy setup controller --yes'
command_of_the_page 'senergy setup node --yes'
wait_for "the node is idle" 'sinfo -h -o %T | grep -qx idle'
section="set-up"
expect "daemons run and start at boot" "systemctl is-active senergyd senergyctld; systemctl is-enabled senergyd senergyctld"
command_of_the_page 'srun --energy-policy=monitor sleep 10'
wait_for "senergy acct shows the job" "senergy acct -X -n -P -o JobName,Policy,State | grep -qx 'sleep|monitor|COMPLETED'"
command_of_the_page 'senergy acct'
expect "an unknown policy is refused in one line" \
    '[ "$(srun --energy-policy=nonsense true 2>&1 | grep -c nonsense)" = 1 ]'
expect "batch jobs carry their flags" 'cd /tmp; printf "#!/bin/sh\n#SBATCH --energy-policy=monitor\ntrue\n" >j
    sbatch -W -o /dev/null j; rm j'
command_of_the_page 'senergy setup controller --yes'
grep -qi -e unchanged -e 'nothing to' -e already "$work/log" || fail "a second set-up does not say that it changes nothing" "$work/log"
for command in 'simulate --help' 'predict --model resnet50 --gpu a100' 'policies' 'report --help' '--version' 'config check' \
    'config example' 'status'; do
    expect "senergy $command" "senergy $command"
done
expect "man pages" '[ -e /usr/share/man/man1/senergy.1.gz ]; [ -e /usr/share/man/man1/senergy-acct.1.gz ]'
expect "completion" '[ -e /usr/share/bash-completion/completions/senergy ]'

command_of_the_page 'senergy setup undo --yes'
wait_for "the node is idle" 'sinfo -h -o %T | grep -qx idle'
expect "jobs run after undo" "srun -n1 true"
command_of_the_page "$purge"
grep -q 'remain in /var/lib/senergyctld' "$work/log" || fail "purge does not say that the database remains" "$work/log"
# Without the options apt keeps what a package of Debian merely recommends or suggests.
[ "$format" = rpm ] || command_of_the_page 'apt-get -q -y -o APT::AutoRemove::RecommendsImportant=0 -o APT::AutoRemove::SuggestsImportant=0 \
    autoremove --purge'
wait_for "the node is idle" 'sinfo -h -o %T | grep -qx idle'
expect "jobs run after purge" "srun -n1 true"
expect "nothing failed" "[ -z \"\$(systemctl list-units --failed --plain --no-legend)\" ]"
expect "nothing of ours in /run" "[ -z \"\$(find /run -name '*senergy*')\" ]"
inside 'scontrol show config' | grep -v -e ^Configuration -e BOOT_TIME -e NEXT_JOB_ID >"$work/slurm-after"
diff "$work/slurm-before" "$work/slurm-after" >"$work/log" || fail "Slurm's configuration differs:" "$work/log"
list_files "$listing-after"
# Documented in docs/packages.md: the database, and with rpm the state of senergyd.
diff "$listing-before" "$listing-after" | grep -e '^[<>]' |
    grep -v -e "^> \\./var/lib/$kept[ /]" -e '^[<>] \./etc/ld\.so\.cache ' -e '^[<>] \./etc/\(passwd\|group\|shadow\|gshadow\)-\? ' \
        >"$work/log" || true
[ ! -s "$work/log" ] || fail "left or changed after undo and purge:" "$work/log"
echo "Debian $debian, $format${site:+, $site}: three commands install slurm-energy; undo and purge leave documented files only"
