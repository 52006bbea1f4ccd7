#!/bin/sh
# Runs the tests of the queue's order in a lab on another Slurm release than this machine's.
#   tests/cluster/priority-release.sh 24.11
#   tests/cluster/priority-release.sh --slurm-prefix DIR --slurm-source DIR
#
# With a prefix: the Slurm in DIR/bin and DIR/sbin of this machine, built from this source with
# --enable-multiple-slurmd, munge, Lua and slurmdbd's plugin for MariaDB.
# Makes a root of the Debian suite that has the release, with debootstrap in a temporary directory (about 2 GB, two
# minutes), installs slurm-energy there from this checkout, builds site_factor/energy from the release's source and
# runs the tests. Needs root and the network. Runs in namespaces of its own and leaves nothing behind.
# Exit: 0 all passed; 1 something failed; 2 bad usage; 4 the release cannot be had.
#
# Not 26.05: slurmdbd 26.05.5 of Debian forky does not start with that suite's MariaDB 11.8.9, and the archive has
# no source of it. Portable mode on it: spank-release.sh.
set -eu

release=${1:-}
prefix=""
suite=""
case $release:${3:-} in
24.11:) suite=trixie ;;
--slurm-prefix:--slurm-source)
    [ -x "${2:-}/sbin/slurmctld" ] || { echo "priority-release: --slurm-prefix ${2:-}: no sbin/slurmctld there" >&2; exit 2; }
    [ -e "${4:-}/META" ] || { echo "priority-release: --slurm-source ${4:-}: no source of Slurm" >&2; exit 2; }
    prefix=$(cd "$2" && pwd)
    slurm_source=$(cd "$4" && pwd)
    ;;
*)
    echo "usage: $0 24.11 | --slurm-prefix DIR --slurm-source DIR" >&2
    exit 2
    ;;
esac
[ "$(id -u)" = 0 ] || { echo "priority-release: needs root: daemons, namespaces" >&2; exit 2; }

repository=$(cd "$(dirname "$0")/../.." && pwd)
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
packages="slurmctld slurmd slurm-client slurmdbd munge libmunge2 libmunge-dev libslurm-dev mariadb-server
    gcc libc6-dev make dpkg-dev fuse3 iproute2 procps hwloc-nox git python3-venv python3-numpy ca-certificates"
work=$(mktemp -d /var/tmp/priority-release.XXXXXX)
root=$work/root
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 1' HUP INT TERM

fail() {
    echo "priority-release: $1" >&2
    [ -z "${2:-}" ] || tail -n 40 "$2" >&2
    exit "${3:-1}"
}

tests="tests/cluster/test_priority_order.py tests/cluster/test_priority_meanings.py"

# Says how the tests went.
judge() { # VERSION
    tail -n 5 "$work/result"
    ! grep -q skipped "$work/result" || fail "tests were skipped, so they say nothing about Slurm $1"
    echo "Slurm $1: the queue's order holds"
}

# The C parts are built in a copy: those of the checkout are for this machine's own Slurm.
test_prefix() {
    PATH=$prefix/bin:$prefix/sbin:$PATH
    SENERGY_PARTS_DIR=$work/parts
    export PATH SENERGY_PARTS_DIR
    mkdir "$work/parts"
    chmod 755 "$work"
    cp -R "$repository/plugins" "$repository/spank" "$repository/prolog_epilog" "$repository/packaging" "$work/parts"
    {
        rm -f "$work/parts/plugins"/*.so "$work/parts/spank"/*.so
        make -C "$work/parts/spank" SLURM_PREFIX="$prefix"
        make -C "$work/parts/prolog_epilog"
        "$repository/.venv/bin/senergy" build-plugins --slurm-prefix "$prefix" --slurm-source "$slurm_source"
    } >"$work/log" 2>&1 || fail "the C parts cannot be built for $prefix:" "$work/log"
    version=$("$prefix/sbin/slurmctld" -V | sed 's/^[^0-9]*//')
    echo "Testing on Slurm $version in $prefix"
    cd "$repository"
    # shellcheck disable=SC2086 # one word per file
    .venv/bin/python -m pytest -q -ra -p no:cacheprovider -W ignore $tests >"$work/result" 2>&1 ||
        fail "tests on Slurm $version in $prefix failed:" "$work/result"
    judge "$version"
}

if [ -n "$prefix" ]; then
    test_prefix
    exit
fi

# Runs a shell command with the root as its /, in mount and process namespaces of its own.
inside() { # COMMAND
    # shellcheck disable=SC2016 # expands in the inner shells
    unshare --mount --pid --fork --kill-child --propagation private /bin/sh -euc '
        root=$1
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
    ' sh "$root" "$1" </dev/null
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
echo "deb-src $mirror $suite main" >"$root/etc/apt/sources.list.d/source.list"
# A mirror may be a snapshot, whose release files have expired.
echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/snapshot"
inside "apt-get -q update; apt-get install -q -y --no-install-recommends $(echo $packages)" >"$work/log" 2>&1 ||
    fail "apt-get install in the root failed:" "$work/log" 4
version=$(chroot "$root" /usr/sbin/slurmctld -V | sed 's/^[^0-9]*//')
case $version in
"$release".*) ;;
*) fail "Debian $suite has Slurm ${version:-none}, not $release" "" 4 ;;
esac

mkdir "$root/src"
(cd "$repository" && git ls-files -z | tar --create --null --files-from=- --ignore-failed-read) |
    tar --extract --directory "$root/src"
cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
inside 'cd /src; python3 -m venv --system-site-packages .venv
    .venv/bin/pip install -q -e ".[lab]" pytest pytest-timeout; make -s -C spank; make -s -C prolog_epilog' \
    >"$work/log" 2>&1 || fail "installing slurm-energy in the root failed:" "$work/log"

# The upstream tarball is enough: Debian's patches do not touch what the plugin includes.
# shellcheck disable=SC2016 # expands in the root
inside 'mkdir /slurm; cd /slurm; chmod 777 .
    apt-get source -q --download-only --tar-only "$(dpkg-query -W -f "\${source:Package}=\${source:Version}" slurmctld)"
    tar -xf ./*.orig.tar.*; mv slurm-*/ source' >"$work/log" 2>&1 || fail "no source of Slurm $version:" "$work/log" 4
inside 'cd /src; .venv/bin/senergy build-plugins --slurm-source /slurm/source' >"$work/log" 2>&1 ||
    fail "site_factor/energy cannot be built for Slurm $version:" "$work/log"

echo "Testing on Slurm $version"
inside "cd /src; .venv/bin/python -m pytest -q -ra -p no:cacheprovider -W ignore $tests" >"$work/result" 2>&1 ||
    fail "tests on Slurm $version failed:" "$work/result"
judge "$version"
