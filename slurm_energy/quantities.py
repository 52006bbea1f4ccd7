"""Physical quantities: parsing, formatting, and arithmetic of wrapping counters.

Inside the project power is in watts, energy in joules and time in seconds, all floats. Only this module
converts from and to the forms that users write. Pure functions.
"""

from __future__ import annotations

import math
import re
import sys
from typing import Any

from slurm_energy.errors import UsageError

_WATTS = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,6})?)(?P<unit>W|kW|MW)?", re.ASCII)
_WATT_FACTORS = {None: 1.0, "W": 1.0, "kW": 1e3, "MW": 1e6}
_PREFIXES = ("", "K", "M", "G", "T", "P")
JOULES_PER_KWH = 3.6e6


def shown(text: str, limit: int = 40) -> str:
    """Return text for a one-line message, with control characters escaped and cut at `limit` characters."""
    escaped = text.encode("unicode_escape").decode("ascii")
    return escaped if len(escaped) <= limit else escaped[: limit - 3] + "..."


def is_number(value: Any) -> bool:
    """Return whether external data is a number in the range of a float; not for booleans and 10^400."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max


def parse_watts(text: str, name: str = "watts") -> float:
    """Parse a power such as `200`, `200W` or `1.6kW`.

    Args:
        text: digits with at most one decimal point and an optional unit W, kW or MW.
        name: flag or key, for the error message.

    Returns:
        Watts; finite and greater than 0.

    Raises:
        UsageError: any other text, such as `15Wh`, `-5`, `1e400`, `0`.
    """
    match = _WATTS.fullmatch(text)
    value = float(match["number"]) * _WATT_FACTORS[match["unit"]] if match else 0.0
    if not value > 0:
        raise UsageError(f"{name}: '{shown(text)}' is not a power", todo="write watts as 200, 200W or 1.6kW")
    return value


def counter_delta(previous: int, current: int, counter_range: int) -> int:
    """Return the increase of a wrapping counter between two readings with at most one wrap.

    Args:
        previous: earlier reading, 0 <= previous < counter_range.
        current: later reading, in the same unit.
        counter_range: number of distinct values; the counter counts modulo this number.
            For powercap that is `max_energy_range_uj` + 1 unit; see `devices/cpu/powercap.py`.

    Returns:
        (current - previous) modulo counter_range, in the counter's unit.
    """
    if counter_range <= 0:
        raise ValueError("counter_range must be positive")
    return (current - previous) % counter_range


def format_scaled(value: float | None, decimals: int = 2) -> str:
    """Format a value as sacct formats ConsumedEnergy, with decimal prefixes K, M, G, T, P; None: empty."""
    if value is None:
        return ""
    magnitude, index = abs(value), 0
    while magnitude >= 1000 and index < len(_PREFIXES) - 1:
        magnitude /= 1000
        index += 1
    text = f"{math.copysign(magnitude, value):.{decimals}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return text + _PREFIXES[index]


def format_duration(seconds: float | None) -> str:
    """Format seconds as Slurm does, `[D-]HH:MM:SS`; None: empty."""
    if seconds is None:
        return ""
    whole = max(0, round(seconds))
    days, rest = divmod(whole, 86400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock
