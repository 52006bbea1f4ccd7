# Functions for tests on another Slurm release in a root of the Debian or Ubuntu suite that has it, to be sourced by
# energy-release.sh, priority-release.sh and spank-release.sh. They use: program (name for messages), repository,
# release, packages, work (a temporary directory) and root (below it).
# shellcheck shell=sh
# shellcheck disable=SC2154 # the variables above

releases="22.05|23.11|24.11|25.11|26.05"

# Sets the suite that has a Slurm release, and how debootstrap gets it: mirror, components, keyring, script. The
# suite is empty for other releases.
find_suite() { # RELEASE
    mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian} components=main keyring=""
    case $1 in
    22.05) suite=bookworm ;;
    24.11) suite=trixie ;;
    26.05) suite=forky ;;
    23.11) suite=noble ;;
    25.11) suite=resolute ;;
    *) suite="" ;;
    esac
    script=/usr/share/debootstrap/scripts/$suite
    case $suite in noble | resolute)
        mirror=${UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu} components=main,universe
        keyring=${UBUNTU_KEYRING:-/usr/share/keyrings/ubuntu-archive-keyring.gpg}
        [ -e "$script" ] || script=/usr/share/debootstrap/scripts/gutsy # newer than debootstrap
        return
        ;;
    esac
    [ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid
}

# Installs the base system of the suite into the root.
bootstrap() {
    command -v debootstrap >/dev/null || fail "this machine has not Slurm $release and no debootstrap" "" 4
    [ -z "$keyring" ] || [ -e "$keyring" ] ||
        fail "no $keyring: take it from Ubuntu's package ubuntu-keyring, or name another one in UBUNTU_KEYRING" "" 4
    echo "Making a root of $suite for Slurm $release"
    unshare --mount --propagation private debootstrap ${keyring:+"--keyring=$keyring"} --components="$components" \
        --variant=minbase "$suite" "$root" "$mirror" "$script" >"$work/log" 2>&1 ||
        fail "debootstrap $suite from $mirror failed:" "$work/log" 4
    printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
    chmod 755 "$root/usr/sbin/policy-rc.d" "$work"
    printf '127.0.0.1 localhost %s\n' "$(hostname)" >"$root/etc/hosts"
    cp --remove-destination /etc/resolv.conf "$root/etc/resolv.conf"
}

fail() { # MESSAGE [LOG [EXIT]]
    echo "$program: $1" >&2
    [ -z "${2:-}" ] || tail -n 40 "$2" >&2
    exit "${3:-1}"
}

version_of() { # ROOT
    chroot "$1" /usr/sbin/slurmctld -V 2>/dev/null | sed 's/^[^0-9]*//'
}

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

# Makes the root with the packages, and this checkout without build products in /src. Sets version.
make_root() {
    bootstrap
    echo "deb-src $mirror $suite $(echo "$components" | tr , ' ')" >"$root/etc/apt/sources.list.d/source.list"
    # A mirror may be a snapshot, whose release files have expired.
    echo 'Acquire::Check-Valid-Until "false";' >"$root/etc/apt/apt.conf.d/snapshot"
    # shellcheck disable=SC2086 # words
    inside "apt-get -q update; apt-get install -q -y --no-install-recommends $(echo $packages)" >"$work/log" 2>&1 ||
        fail "apt-get install in the root failed:" "$work/log" 4
    version=$(version_of "$root")
    case $version in
    "$release".*) ;;
    *) fail "$suite has Slurm ${version:-none}, not $release" "" 4 ;;
    esac
    [ "$suite" = noble ] || replace_mariadb_library
    mkdir "$root/src"
    (cd "$repository" && git ls-files -z | tar --create --null --files-from=- --ignore-failed-read) |
        tar --extract --directory "$root/src"
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"
}

# slurmdbd 24.11.5 and 26.05.5 do not start with the client library of MariaDB 11.8 in their suites (`select @var :=
# concat('')`: error 5027). They work with the library of Debian 12, which replaces it.
replace_mariadb_library() {
    cp /usr/share/keyrings/debian-archive-keyring.gpg "$root/usr/share/keyrings/bookworm.gpg"
    echo "deb [signed-by=/usr/share/keyrings/bookworm.gpg] ${DEBIAN_MIRROR:-http://deb.debian.org/debian} bookworm main" \
        >"$root/etc/apt/sources.list.d/bookworm.list"
    # shellcheck disable=SC2016 # expands in the root
    inside 'apt-get -q update
        older=$(apt-cache madison libmariadb3 | sed -n "s/^[^|]*| *\([^ |]*\) *|.*bookworm.*/\1/p" | head -n 1)
        cd /tmp
        apt-get -q -o APT::Sandbox::User=root download "libmariadb3=$older"
        dpkg --extract libmariadb3_*.deb older
        cp older/usr/lib/*/libmariadb.so.3 /usr/lib/*/libmariadb.so.3' >"$work/log" 2>&1 ||
        fail "no older client library of MariaDB:" "$work/log" 4
}
