#!/bin/sh
# Runs the tests of the queue's order in a lab on another Slurm release than this machine's.
#   tests/cluster/priority-release.sh 23.11|24.11|25.11
#   tests/cluster/priority-release.sh --slurm-prefix DIR --slurm-source DIR
#
# With a prefix: the Slurm in DIR/bin and DIR/sbin of this machine, built from this source with
# --enable-multiple-slurmd, munge, Lua and slurmdbd's plugin for MariaDB.
# Makes a root of the Debian or Ubuntu suite that has the release, with debootstrap in a temporary directory (about 2 GB, two
# minutes), installs slurm-energy there from this checkout, builds site_factor/energy from the release's source and
# runs the tests. Needs root and the network. Runs in namespaces of its own and leaves nothing behind.
# Exit: 0 all passed; 1 something failed; 2 bad usage; 4 the release cannot be had.
#
# Not 26.05: the archive has no source of 26.05.5 of Debian forky. Portable mode on it: spank-release.sh.
set -eu

release=${1:-}
repository=$(cd "$(dirname "$0")/../.." && pwd)
program=priority-release
. "$repository/tests/cluster/debian_root.sh"
prefix=""
case $release:${3:-} in
23.11: | 24.11: | 25.11:) find_suite "$release" ;;
--slurm-prefix:--slurm-source)
    [ -x "${2:-}/sbin/slurmctld" ] || { echo "priority-release: --slurm-prefix ${2:-}: no sbin/slurmctld there" >&2; exit 2; }
    [ -e "${4:-}/META" ] || { echo "priority-release: --slurm-source ${4:-}: no source of Slurm" >&2; exit 2; }
    prefix=$(cd "$2" && pwd)
    slurm_source=$(cd "$4" && pwd)
    ;;
*)
    echo "usage: $0 23.11|24.11|25.11 | --slurm-prefix DIR --slurm-source DIR" >&2
    exit 2
    ;;
esac
[ "$(id -u)" = 0 ] || { echo "priority-release: needs root: daemons, namespaces" >&2; exit 2; }

packages="slurmctld slurmd slurm-client slurmdbd munge libmunge2 libmunge-dev libslurm-dev mariadb-server
    gcc libc6-dev make dpkg-dev fuse3 iproute2 procps hwloc-nox git python3-venv python3-numpy ca-certificates"
work=$(mktemp -d /var/tmp/priority-release.XXXXXX)
root=$work/root
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 1' HUP INT TERM

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

make_root
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
