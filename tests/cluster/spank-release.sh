#!/bin/sh
# Builds the C parts on another Slurm release and runs their tests there on a real cluster, and those of the
# portable order of the queue and the admission under power budgets.
#   tests/cluster/spank-release.sh 22.05|23.11|24.11|25.11|26.05
#   tests/cluster/spank-release.sh --slurm-prefix DIR    the Slurm in DIR/bin and DIR/sbin of this machine
#
# The Slurm in a prefix has its headers there, munge and Lua, and was built with --enable-multiple-slurmd.
#
# Uses this machine's Slurm if it is that release, else a root of the Debian or Ubuntu suite that has it, made with
# debootstrap in a temporary directory (about 700 MB, two minutes). Needs root. Runs in process, mount and network
# namespaces of its own and leaves nothing behind. Exit: 0 all passed; 1 something failed or was skipped; 2 bad
# usage; 4 the release cannot be had.
set -eu

release=${1:-}
prefix=""
if [ "$release" = --slurm-prefix ] && [ -n "${2:-}" ]; then
    [ -x "$2/sbin/slurmctld" ] || { echo "spank-release: --slurm-prefix $2: no sbin/slurmctld there" >&2; exit 2; }
    prefix=$(cd "$2" && pwd)
    release=$("$prefix/sbin/slurmctld" -V | sed 's/^[^0-9]*//; s/^\([0-9]*\.[0-9]*\).*/\1/')
fi
repository=$(cd "$(dirname "$0")/../.." && pwd)
program=spank-release
. "$repository/tests/cluster/debian_root.sh"
find_suite "$release"
[ -n "$prefix$suite" ] || { echo "usage: $0 $releases|--slurm-prefix DIR" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "spank-release: needs root: daemons, namespaces" >&2; exit 2; }

packages="slurmctld slurmd slurm-client munge libmunge2 libslurm-dev gcc libc6-dev make python3-pytest"
packages="$packages python3-numpy python3-clustershell python3-pip ca-certificates"
work=$(mktemp -d /var/tmp/spank-release.XXXXXX)
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 1' HUP INT TERM
tests="tests/cluster/test_spank_flags_on_slurm.py tests/cluster/test_priority_portable.py"
tests="$tests tests/cluster/test_shapes_on_slurm.py tests/cluster/test_missing_files.py"
tests="$tests tests/cluster/test_budget_admission.py tests/cluster/test_gpu_order_on_slurm.py"

release_of() { # ROOT: "26.05.5" if a slurmctld is installed there
    chroot "$1" "${prefix:-/usr}/sbin/slurmctld" -V 2>/dev/null | sed 's/^[^0-9]*//'
}

# Runs a command in namespaces of its own; ROOT sees its own /proc and /sys and an empty network.
run_in() { # ROOT COMMAND...
    root=$1
    shift
    # shellcheck disable=SC2016 # expands in the inner shell
    unshare --mount --pid --net --fork --kill-child --propagation private /bin/sh -euc '
        root=$1
        shift
        ip link set lo up
        ip address add 192.0.2.1/32 dev lo # with 127.0.0.1 alone getaddrinfo(AI_ADDRCONFIG) finds nothing
        mount -t proc proc "$root/proc"
        [ "$root" = / ] || mount -t sysfs -o ro sysfs "$root/sys"
        exec chroot "$root" /usr/bin/env -i LC_ALL=C.UTF-8 "$@"
    ' sh "$root" "$@"
}

# Installs the suite and the packages into $work/root. Downloads need this machine's network.
install_root() {
    root=$work/root
    bootstrap
    # shellcheck disable=SC2016,SC2086 # one word per package; expands in the inner shell
    unshare --mount --pid --fork --kill-child --propagation private /bin/sh -euc '
        mount -t proc proc "$1/proc"
        root=$1
        shift
        export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
        exec chroot "$root" apt-get install -q -y --no-install-recommends "$@"
    ' sh "$root" $packages >"$work/log" 2>&1 || fail "apt-get install in the root failed:" "$work/log" 4
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
    # From PyPI, because Ubuntu 24.04 has an older SQLAlchemy than the controller needs.
    inside "python3 -m pip install -q --break-system-packages --root-user-action=ignore 'SQLAlchemy>=2.0.21'" \
        >"$work/log" 2>&1 || fail "pip install in the root failed:" "$work/log" 4
}

case $(release_of /) in
"$release".*)
    root=/
    source=$work
    scratch=$work
    python=$repository/.venv/bin/python
    [ -x "$python" ] || python=/usr/bin/python3
    ;;
*)
    [ -z "$prefix" ] || fail "$prefix/sbin/slurmctld says no release"
    install_root
    source=$work/root/src
    scratch=/tmp
    python=/usr/bin/python3
    ;;
esac
version=$(release_of "$root")
case $version in
"$release".*) ;;
*) fail "$suite has Slurm ${version:-none}, not $release" "" 4 ;;
esac

mkdir -p "$source/tests/cluster" "$source/packaging"
chmod 755 "$work"
cp -R "$repository/spank" "$repository/prolog_epilog" "$repository/slurm_energy" "$source"
cp "$repository/tests/cluster/small_cluster.py" "$source/tests/cluster"
cp "$repository/packaging/install-file" "$repository/packaging/slurm-headers" "$source/packaging"
for file in $tests; do
    cp "$repository/$file" "$source/tests/cluster"
done
echo "Testing on Slurm $version, $(chroot "$root" gcc --version | head -n 1)"
seen=${source#"${root%/}"} # as it is called inside
path=${prefix:+$prefix/bin:$prefix/sbin:}/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
# shellcheck disable=SC2086 # one word per file
run_in "$root" PATH="$path" SLURM_PREFIX="$prefix" SENERGY_TEST_SLURM_PREFIX="$prefix" \
    TMPDIR="$scratch" PYTHONPATH="$seen" SENERGY_TEST_QUEUE_JOBS=60 /bin/sh -euc '
        cd "$1"
        shift
        make -s -C spank clean all # the copy has those of the checkout, for another Slurm
        make -s -C prolog_epilog clean all
        exec "$@"
    ' sh "$seen" \
    "$python" -m pytest -q -ra -p no:cacheprovider -W ignore $tests >"$work/result" 2>&1 ||
    fail "tests on Slurm $version failed:" "$work/result"
cat "$work/result"
! grep -q skipped "$work/result" || fail "tests were skipped, so they say nothing about Slurm $version"
echo "Slurm $version: built without warnings, tests passed"
