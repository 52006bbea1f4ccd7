"""Pure functions for the kernel's text formats of CPU sets: lists (`0-3,8`) and hexadecimal masks."""

from __future__ import annotations

import re
from collections.abc import Iterable

from slurm_energy.errors import UsageError

_MAX_CPU = 8191
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


def format_list(cpus: Iterable[int]) -> str:
    """Return CPUs as a list such as `0-3,8`; an empty string for no CPUs."""
    parts: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if parts and cpu == parts[-1][1] + 1:
            parts[-1][1] = cpu
        else:
            parts.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def format_mask(cpus: Iterable[int], count: int) -> str:
    """Return CPUs as a hexadecimal mask of `count` bits: groups of 32 bits, most significant group first."""
    value = 0
    for cpu in cpus:
        value |= 1 << cpu
    groups, rest = [], count
    while rest > 0:
        digits = (min(rest, 32) + 3) // 4
        groups.append(f"{value & 0xFFFFFFFF:0{digits}x}")
        value >>= 32
        rest -= 32
    return ",".join(reversed(groups))


def parse_list(text: str) -> tuple[int, ...]:
    """Return the CPUs of a list such as `0-3,8` in ascending order.

    Raises:
        UsageError: `text` is not a list of numbers and ascending ranges.
    """
    cpus: set[int] = set()
    for part in text.strip().split(","):
        match = _RANGE.fullmatch(part)
        first = int(match[1]) if match else 0
        last = int(match[2]) if match and match[2] else first
        if match is None or last < first or last > _MAX_CPU:
            raise UsageError(f"CPU list: '{part[:20]}' is not a CPU or a rising range")
        cpus.update(range(first, last + 1))
    return tuple(sorted(cpus))
