#!/bin/sh
# Compares the energy in Slurm's own accounting with our records, in a lab on another Slurm release.
#   tests/cluster/energy-release.sh 22.05|23.11|24.11|25.11|26.05 [TEST...]
#
# With TEST, such as tests/cluster/test_upgrade_under_load.py, these tests run instead.
# Makes a root of the Debian or Ubuntu suite that has the release, with debootstrap in a temporary directory (about 2 GB, two
# minutes), installs slurm-energy there from this checkout, builds acct_gather_energy/senergy with -Werror from the
# suite's headers and runs tests/cluster/test_acct_gather.py with its soak tests, and the test of the line about
# energy in the output of jobs. 22.05: on this machine's own Slurm.
# Needs root and the network. Runs in namespaces of its own and leaves nothing behind. Prints each compared value.
# Exit: 0 all passed; 1 something failed; 2 bad usage; 4 the release cannot be had.
set -eu

release=${1:-}
repository=$(cd "$(dirname "$0")/../.." && pwd)
program=energy-release
. "$repository/tests/cluster/debian_root.sh"
find_suite "$release"
[ -n "$suite" ] || { echo "usage: $0 $releases [TEST...]" >&2; exit 2; }
[ "$(id -u)" = 0 ] || { echo "energy-release: needs root: daemons, namespaces" >&2; exit 2; }

packages="slurmctld slurmd slurm-client slurmdbd munge libmunge2 libslurm-dev mariadb-server gcc libc6-dev make
    fuse3 iproute2 procps hwloc-nox linux-cpupower powercap-utils python3-venv python3-numpy ca-certificates"
work=$(mktemp -d /var/tmp/energy-release.XXXXXX)
root=$work/root
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 1' HUP INT TERM

# Says how the tests went.
judge() { # VERSION
    grep -E '^job [0-9]+ row' "$work/result" || true
    tail -n 5 "$work/result"
    ! grep -q skipped "$work/result" || fail "tests were skipped, so they say nothing about Slurm $1"
    echo "Slurm $1: all passed"
}

line=tests/cluster/test_cli_on_slurm.py::test_a_line_about_energy_ends_the_output_of_batch_jobs
shift
pytest="-m pytest -q -rP -p no:cacheprovider -W ignore ${*:-tests/cluster/test_acct_gather.py $line}"
marks="soak or not soak"
if [ "$suite" = bookworm ]; then
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

make_root
mkdir "$root/old-release" # for test_upgrade_under_load.py; empty without the history of the repository
git -C "$repository" archive 441f2bc8 2>/dev/null | tar --extract --directory "$root/old-release" 2>/dev/null || true
inside 'cd /src; python3 -m venv --system-site-packages .venv
    .venv/bin/pip install -q -e ".[lab]" pytest pytest-timeout; make -s -C spank; make -s -C prolog_epilog
    CFLAGS_EXTRA="-Wall -Wextra -Werror" .venv/bin/senergy build-plugins --only energy' >"$work/log" 2>&1 ||
    fail "installing slurm-energy in the root failed:" "$work/log"
echo "Testing on Slurm $version"
inside "cd /src; SENERGY_TEST_OLD_CODE=/old-release .venv/bin/python $pytest -m '$marks'" --net >"$work/result" 2>&1 ||
    fail "tests on Slurm $version failed:" "$work/result"
judge "$version"
