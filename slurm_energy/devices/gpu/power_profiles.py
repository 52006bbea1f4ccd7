"""NVIDIA workload power profiles: names and numbers. Source: NVML 13.1, nvmlPowerProfileType_t."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

POWER_PROFILES: Final[Mapping[str, int]] = {
    name: number
    for number, name in enumerate(
        (
            "MAX_P",
            "MAX_Q",
            "COMPUTE",
            "MEMORY_BOUND",
            "NETWORK",
            "BALANCED",
            "LLM_INFERENCE",
            "LLM_TRAINING",
            "RBM",
            "DCPCIE",
            "HMMA_SPARSE",
            "HMMA_DENSE",
            "SYNC_BALANCED",
            "HPC",
            "MIG",
            "MAX_Q_1",
            "NETWORK_BOUND",
            "HIGH_THROUGHPUT_INFERENCE",
            "MEDIUM_THROUGHPUT_INFERENCE",
            "LOW_LATENCY_INFERENCE",
            "TRAINING",
            "INFERENCE",
            "MAX_Q_2",
            "MAX_Q_3",
            "LOW_PRIORITY_BACKGROUND",
        )
    )
}
"""NVML's number of each named profile."""

MAX_PROFILES: Final = 255
"""Maximum number of profiles in NVML's bit masks."""
_NUMBERED: Final = re.compile(r"PROFILE_(0|[1-9][0-9]{0,2})")
_NAMES: Final = {number: name for name, number in POWER_PROFILES.items()}


def profile_name(number: int) -> str:
    """Return the name of a profile, for example `MAX_Q`; `PROFILE_40` for the unnamed profile 40."""
    return _NAMES.get(number, f"PROFILE_{number}")


def profile_number(name: str) -> int | None:
    """Return NVML's number of a profile, `MAX_Q` or `PROFILE_40`; None for any other text."""
    if name in POWER_PROFILES:
        return POWER_PROFILES[name]
    match = _NUMBERED.fullmatch(name)
    return int(match[1]) if match and int(match[1]) < MAX_PROFILES else None


def canonical_name(text: str) -> str | None:
    """Convert a profile name typed by a user to the spelling of `profile_name`; None for other text.

    Case does not matter, and `max-q` is the same as `MAX_Q`.
    """
    number = profile_number(text.upper().replace("-", "_")) if text.isascii() else None
    return None if number is None else profile_name(number)


def profile_names(numbers: Iterable[int]) -> tuple[str, ...]:
    """Return the names of profiles. The names are ordered by the profiles' numbers."""
    return tuple(profile_name(number) for number in sorted(numbers))
