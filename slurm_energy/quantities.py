"""Physical quantities: parsing, formatting, and the difference between readings of wrapping counters.

Inside the project power is in watts, energy in joules and time in seconds, all as floats. Only this module
converts these quantities from and to the forms that users write. All functions are pure.
"""

from __future__ import annotations

import math
import re
import sys
from typing import Any

from slurm_energy.errors import UsageError

_WATTS = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,6})?)(?P<unit>W|kW|MW)?", re.ASCII)
_WATT_FACTORS = {None: 1.0, "W": 1.0, "kW": 1e3, "MW": 1e6}
_MEGAHERTZ = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,6})?)(?P<unit>MHz|GHz)?", re.ASCII)
_PERCENT = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,6})?)%?", re.ASCII)
_SAMPLING = re.compile(r"(?P<number>\d{1,4})(?P<unit>s|m)", re.ASCII)
_SAMPLING_UNITS_S = {"s": 1, "m": 60}
MIN_SAMPLING_S, MAX_SAMPLING_S = 1, 300
_PREFIXES = ("", "K", "M", "G", "T", "P")
JOULES_PER_KWH = 3.6e6


def shown(text: str, limit: int = 40) -> str:
    """Return user-supplied text for a one-line message, with control characters escaped.

    Args:
        text: user-supplied text.
        limit: maximum length in characters; longer text is cut and ends in `...`.
    """
    escaped = text.encode("unicode_escape").decode("ascii")
    return escaped if len(escaped) <= limit else escaped[: limit - 3] + "..."


def is_number(value: Any) -> bool:
    """Return whether a value from outside the program is a number that a float can hold.

    The result is False for booleans, and for numbers that are too large, such as 10^400.
    """
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max


def parse_watts(text: str, name: str = "watts") -> float:
    """Parse a power such as `200`, `200W` or `1.6kW` into watts.

    Args:
        text: digits with at most one decimal point and an optional unit W, kW or MW.
        name: flag or configuration key, for the error message.

    Returns:
        Watts; finite and greater than 0.

    Raises:
        UsageError: the text has any other form, such as `15Wh`, `-5` or `1e400`, or is 0.
    """
    match = _WATTS.fullmatch(text)
    value = float(match["number"]) * _WATT_FACTORS[match["unit"]] if match else 0.0
    if not value > 0:
        raise UsageError(f"{name}: '{shown(text)}' is not a power", todo="write watts as 200, 200W or 1.6kW")
    return value


def parse_sampling_interval(text: str, name: str = "interval") -> int | None:
    """Parse `off` or an interval of samples such as `10s` or `1m` into seconds; None means off.

    Args:
        text: `off`, or digits with the unit s or m.
        name: flag or configuration key, for the error message.

    Returns:
        Seconds from 1 to 300, or None.

    Raises:
        UsageError: the text has any other form, or the interval is out of these bounds.
    """
    if text == "off":
        return None
    match = _SAMPLING.fullmatch(text)
    seconds = int(match["number"]) * _SAMPLING_UNITS_S[match["unit"]] if match else 0
    if not MIN_SAMPLING_S <= seconds <= MAX_SAMPLING_S:
        todo = "write off, or 1s to 5m as in 10s"
        raise UsageError(f"{name}: '{shown(text)}' is not an interval", todo=todo)
    return seconds


def parse_megahertz(text: str, name: str = "frequency") -> float:
    """Parse a frequency such as `2400`, `2400MHz` or `2.4GHz` into MHz.

    Args:
        text: digits with at most one decimal point and an optional unit MHz or GHz.
        name: flag or configuration key, for the error message.

    Returns:
        MHz; finite and greater than 0.

    Raises:
        UsageError: the text has any other form, or is 0.
    """
    match = _MEGAHERTZ.fullmatch(text)
    value = float(match["number"]) * (1e3 if match["unit"] == "GHz" else 1.0) if match else 0.0
    if not value > 0:
        todo = "write MHz as 2400, 2400MHz or 2.4GHz"
        raise UsageError(f"{name}: '{shown(text)}' is not a frequency", todo=todo)
    return value


def parse_percent(text: str, name: str = "percentage") -> float:
    """Parse a percentage such as `5`, `5%` or `2.5%`.

    Args:
        text: digits with at most one decimal point and an optional percent sign.
        name: flag or configuration key, for the error message.

    Returns:
        The percentage; finite and at least 0.

    Raises:
        UsageError: the text has any other form.
    """
    match = _PERCENT.fullmatch(text)
    if match is None:
        raise UsageError(f"{name}: '{shown(text)}' is not a percentage", todo="write it as 5, 5% or 2.5%")
    return float(match["number"])


def counter_delta(previous: int, current: int, counter_range: int) -> int:
    """Return the increase of a wrapping counter between two readings.

    At most one wrap may have occurred between the readings.

    Args:
        previous: earlier reading, 0 <= previous < counter_range.
        current: later reading, in the same unit.
        counter_range: number of distinct values; the counter counts modulo this number. For powercap, this
            number is `max_energy_range_uj` plus one register unit, see `devices/cpu/powercap.py`.

    Returns:
        The increase (current - previous) modulo counter_range, in the counter's unit.
    """
    if counter_range <= 0:
        raise ValueError("counter_range must be positive")
    return (current - previous) % counter_range


def format_scaled(value: float | None, decimals: int = 2) -> str:
    """Format a value with the decimal prefixes K, M, G, T, P, as sacct formats ConsumedEnergy.

    Args:
        value: the value; None becomes an empty text.
        decimals: maximum number of decimals; trailing zeros are removed.
    """
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
    """Format a duration in seconds as Slurm does, `[D-]HH:MM:SS`; None becomes an empty text."""
    if seconds is None:
        return ""
    whole = max(0, round(seconds))
    days, rest = divmod(whole, 86400)
    clock = f"{rest // 3600:02d}:{rest % 3600 // 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock
