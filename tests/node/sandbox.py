"""Runs a command under a systemd unit's limits on system calls and capabilities: sandbox.py UNIT COMMAND...

Supported are the limits that need no mount: SystemCallFilter, SystemCallErrorNumber=EPERM,
CapabilityBoundingSet, NoNewPrivileges, UMask, LimitNOFILE. Names of groups are systemd's, as listed by
`systemd-analyze`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import resource
import struct
import subprocess
import sys
from pathlib import Path

NUMBERS = Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h")
CAPABILITIES = Path("/usr/include/linux/capability.h")
CAPBSET_DROP, SET_SECCOMP, SET_NO_NEW_PRIVS, MODE_FILTER = 24, 22, 38, 2
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
ALLOW, ERROR = 0x7FFF0000, 0x00050000


def settings(unit: Path) -> dict[str, list[str]]:
    """Return all values of each setting in a systemd unit file, by the name of the setting."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text().splitlines():
        if match := re.fullmatch(r"([A-Za-z]+)=(.*)", line):
            found.setdefault(match[1], []).append(match[2])
    return found


def group(name: str) -> set[str]:
    """Return the names of the system calls in a group of systemd, including nested groups.

    If `name` is not a group but a system call, the result contains only this name.
    """
    if not name.startswith("@"):
        return {name}
    command = ["systemd-analyze", "syscall-filter", name]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    words = [line.split("#")[0].strip() for line in text.splitlines()[1:]]
    return set().union(*(group(word) for word in words if word))


def allowed(filters: list[str]) -> set[str]:
    """Return the system calls that the SystemCallFilter lines allow.

    The lines are applied in order. The result starts with the calls of the group `@default`. Lines
    that begin with `~` remove calls; other lines add calls.
    """
    found = group("@default")
    for line in filters:
        calls = set().union(*(group(word) for word in line.removeprefix("~").split()))
        found = found - calls if line.startswith("~") else found | calls
    return found


def restrict_calls(names: set[str]) -> None:
    numbers = dict(re.findall(r"#define __NR_(\w+) (\d+)", NUMBERS.read_text()))
    program = [struct.pack("HBBI", LOAD, 0, 0, 0)]
    for name in sorted(names & numbers.keys()):
        program.append(struct.pack("HBBI", JUMP_IF_EQUAL, 0, 1, int(numbers[name])))
        program.append(struct.pack("HBBI", RETURN, 0, 0, ALLOW))
    program.append(struct.pack("HBBI", RETURN, 0, 0, ERROR | errno.EPERM))
    code = ctypes.create_string_buffer(b"".join(program))
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    prctl(SET_SECCOMP, MODE_FILTER, ctypes.create_string_buffer(header))


def restrict_capabilities(names: set[str]) -> None:
    numbers = dict(re.findall(r"#define (CAP_\w+)\s+(\d+)\n", CAPABILITIES.read_text()))
    for name, number in sorted(numbers.items(), key=lambda item: item[0] == "CAP_SETPCAP"):
        if name not in names:
            prctl(CAPBSET_DROP, int(number))


def prctl(option: int, *arguments: object) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    padded = [*arguments, 0, 0, 0, 0][:4]
    if library.prctl(option, *(ctypes.c_ulong(a) if isinstance(a, int) else a for a in padded)) != 0:
        raise OSError(ctypes.get_errno(), f"prctl {option}")


def main() -> None:
    unit = settings(Path(sys.argv[1]))
    calls = allowed(unit["SystemCallFilter"])
    files = int(unit["LimitNOFILE"][-1])
    files = min(files, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    os.umask(int(unit["UMask"][-1], 8))
    restrict_capabilities(set(unit["CapabilityBoundingSet"][-1].split()))
    prctl(SET_NO_NEW_PRIVS, 1)
    restrict_calls(calls)
    os.execvp(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
