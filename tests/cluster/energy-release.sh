#!/bin/sh
# Compares the energy in Slurm's own accounting with our records, in a lab on another Slurm release.
#   tests/cluster/energy-release.sh 22.05|24.11|26.05 [TEST...]
#
# With TEST, such as tests/cluster/test_upgrade_under_load.py, these tests run instead.
# Makes a root of the Debian suite that has the release, with debootstrap in a temporary directory (about 2 GB, two
# minutes), installs slurm-energy there from this checkout, builds acct_gather_energy/senergy with -Werror from the
# suite's headers and runs tests/cluster/test_acct_gather.py with its soak tests, and the test of the line about
# energy in the output of jobs. 22.05: on this machine's own Slurm.
# Needs root and the network. Runs in namespaces of its own and leaves nothing behind. Prints each compared value.
# Exit: 0 all passed; 1 something failed; 2 bad usage; 4 the release cannot be had.
#
# slurmdbd 24.11.5 and 26.05.5 do not start with the client library of MariaDB 11.8.9 in their suites (`select @var :=
# concat('')`: error 5027). They work with the library of Debian 12, which replaces it.
set -eu

release=${1:-}
case $release in
22.05) suite="" ;;
24.11) suite=trixie ;;
26.05) suite=forky ;;
*)
    echo "usage: $0 22.05|24.11|26.05 [TEST...]" >&2
    exit 2
    ;;
esac
[ "$(id -u)" = 0 ] || { echo "energy-release: needs root: daemons, namespaces" >&2; exit 2; }

repository=$(cd "$(dirname "$0")/../.." && pwd)
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
packages="slurmctld slurmd slurm-client slurmdbd munge libmunge2 libslurm-dev mariadb-server gcc libc6-dev make
    fuse3 iproute2 procps hwloc-nox linux-cpupower powercap-utils python3-venv python3-numpy ca-certificates"
work=$(mktemp -d /var/tmp/energy-release.XXXXXX)
root=$work/root
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 1' HUP INT TERM

fail() {
    echo "energy-release: $1" >&2
    [ -z "${2:-}" ] || tail -n 40 "$2" >&2
    exit "${3:-1}"
}

# Says how the tests went.
judge() { # VERSION
    grep -E '^job [0-9]+ row' "$work/result" || true
    tail -n 5 "$work/result"
    ! grep -q skipped "$work/result" || fail "tests were skipped, so they say nothing about Slurm $1"
    echo "Slurm $1: all passed"
}

version_of() { # ROOT
    chroot "$1" /usr/sbin/slurmctld -V 2>/dev/null | sed 's/^[^0-9]*//'
}

line=tests/cluster/test_cli_on_slurm.py::test_a_line_about_energy_ends_the_output_of_batch_jobs
shift
pytest="-m pytest -q -rP -p no:cacheprovider -W ignore ${*:-tests/cluster/test_acct_gather.py $line}"
marks="soak or not soak"
if [ -z "$suite" ]; then
    version=$(version_of /)
    case $version in
    "$release".*) ;;
    *) fail "this machine has Slurm ${version:-none}, not $release" "" 4 ;;
    esac
    cd "$repository"
    # shellcheck disable=SC2086 # words
    .venv/bin/python $pytest -m "$marks" >"$work/result" 2>&1 || fail "tests on Slurm $version failed:" "$work/result"
    judge "$version"
    exit
fi

# Runs a shell command with the root as its /, in mount and process namespaces of its own.
inside() { # COMMAND [--net]
    # shellcheck disable=SC2016 # expands in the inner shells
    unshare --mount --pid ${2:-} --fork --kill-child --propagation private /bin/sh -euc '
        root=$1
        if [ -n "$3" ]; then
            ip link set lo up
            ip address add 192.0.2.1/32 dev lo # with 127.0.0.1 alone getaddrinfo(AI_ADDRCONFIG) finds nothing
        fi
        mount --bind "$root" "$root"
        mount -t tmpfs tmpfs "$root/dev"
        mkdir "$root/dev/pts" "$root/dev/shm"
        for name in null zero full random urandom tty fuse; do
            touch "$root/dev/$name"
            mount --bind "/dev/$name" "$root/dev/$name"
        done
        ln -s /proc/self/fd "$root/dev/fd"
        mount -t tmpfs tmpfs "$root/dev/shm"
        mount --rbind /sys "$root/sys"
        mount -t proc proc "$root/proc"
        cd "$root"
        mkdir -p old
        pivot_root . old
        umount -l /old
        exec /usr/bin/env -u LD_PRELOAD LC_ALL=C.UTF-8 HOME=/root DEBIAN_FRONTEND=noninteractive \
            PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
            PIP_CERT=/etc/ssl/certs/ca-certificates.crt /bin/sh -euc "$2"
    ' sh "$root" "$1" "${2:-}" </dev/null
}

script=/usr/share/debootstrap/scripts/$suite
[ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid # newer than debootstrap
command -v debootstrap >/dev/null || fail "no debootstrap" "" 4
echo "Making a root of Debian $suite for Slurm $release"
unshare --mount --propagation private debootstrap --variant=minbase "$suite" "$root" "$mirror" "$script" \
    >"$work/log" 2>&1 || fail "debootstrap $suite from $mirror failed:" "$work/log" 4
printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
chmod 755 "$root/usr/sbin/policy-rc.d" "$work"
printf '127.0.0.1 localhost %s\n' "$(hostname)" >"$root/etc/hosts"
cp /etc/resolv.conf "$root/etc/resolv.conf"
# A mirror may be a snapshot, whose release files have expired.
echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/snapshot"
inside "apt-get -q update; apt-get install -q -y --no-install-recommends $(echo $packages)" >"$work/log" 2>&1 ||
    fail "apt-get install in the root failed:" "$work/log" 4
echo "deb $mirror bookworm main" >"$root/etc/apt/sources.list.d/bookworm.list"
# shellcheck disable=SC2016 # expands in the root
inside 'apt-get -q update
    older=$(apt-cache madison libmariadb3 | sed -n "s/^[^|]*| *\([^ |]*\) *|.*bookworm.*/\1/p" | head -n 1)
    cd /tmp
    apt-get -q -o APT::Sandbox::User=root download "libmariadb3=$older"
    dpkg --extract libmariadb3_*.deb older
    cp older/usr/lib/*/libmariadb.so.3 /usr/lib/*/libmariadb.so.3' >"$work/log" 2>&1 ||
    fail "no older client library of MariaDB:" "$work/log" 4
version=$(version_of "$root")
case $version in
"$release".*) ;;
*) fail "Debian $suite has Slurm ${version:-none}, not $release" "" 4 ;;
esac

mkdir "$root/src"
(cd "$repository" && git ls-files -z | tar --create --null --files-from=- --ignore-failed-read) |
    tar --extract --directory "$root/src"
mkdir "$root/old-release" # for test_upgrade_under_load.py; empty without the history of the repository
git -C "$repository" archive 441f2bc8 2>/dev/null | tar --extract --directory "$root/old-release" 2>/dev/null || true
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
inside 'cd /src; python3 -m venv --system-site-packages .venv
    .venv/bin/pip install -q -e ".[lab]" pytest pytest-timeout; make -s -C spank; make -s -C prolog_epilog
    CFLAGS_EXTRA="-Wall -Wextra -Werror" .venv/bin/senergy build-plugins --only energy' >"$work/log" 2>&1 ||
    fail "installing slurm-energy in the root failed:" "$work/log"
echo "Testing on Slurm $version"
inside "cd /src; SENERGY_TEST_OLD_CODE=/old-release .venv/bin/python $pytest -m '$marks'" --net >"$work/result" 2>&1 ||
    fail "tests on Slurm $version failed:" "$work/result"
judge "$version"
