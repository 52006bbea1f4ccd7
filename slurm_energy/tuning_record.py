"""Validation of the key `tuning` of an energy record.

The value of this key describes how a job was tuned on one node.

The keys are listed in docs/reference/protocol.md. Readers keep keys that they do not know. The package
`tuning` builds operating points and response points from the validated values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from slurm_energy.errors import UsageError
from slurm_energy.quantities import is_number, shown

MODES: Final = ("off", "advise", "on")
MAX_POINTS: Final = 256
"""Maximum number of measured operating points in a record."""
MAX_PROBES: Final = 10_000
"""Maximum number of probes in a record. A higher number is reduced to this maximum."""
MAX_KEYS: Final = 64
MAX_DEPTH: Final = 8
_MAX_TEXT: Final = 1024
_REQUIRED: Final = ("mode", "objective")


def check_tuning(data: Any) -> dict[str, Any] | None:
    """Validate the value of the key `tuning` of an energy record and return it.

    Args:
        data: the value from JSON; None if the job was not tuned.

    Raises:
        UsageError: the value is not an object, a required key is missing, a known key has the wrong type or
            is out of range, or the value is too large or nested too deeply.
    """
    if data is None:
        return None
    if not isinstance(data, Mapping):
        raise UsageError("energy record: tuning: not a JSON object")
    for key in _REQUIRED:
        if key not in data:
            raise UsageError(f"energy record: tuning: '{key}' is missing")
    _check_object(data, "tuning", MAX_DEPTH)
    for key, check in _CHECKS.items():
        if key in data and not check(data[key]):
            raise UsageError(f"energy record: tuning: bad value for '{key}': {shown(str(data[key]), 60)!r}")
    return dict(data)


def _check_object(value: Any, name: str, depth: int) -> None:
    """Check that a JSON value does not exceed the limits of key count, text length and depth."""
    if isinstance(value, Mapping):
        if depth <= 0 or len(value) > MAX_KEYS or not all(_is_name(key) for key in value):
            raise UsageError(f"energy record: {shown(name)}: too many keys, or nested too deeply")
        for key, item in value.items():
            _check_object(item, key, depth - 1)
    elif isinstance(value, list | tuple):
        if depth <= 0 or len(value) > MAX_POINTS:
            raise UsageError(f"energy record: {shown(name)}: longer than {MAX_POINTS}, or nested too deeply")
        for item in value:
            _check_object(item, name, depth - 1)
    elif not (value is None or isinstance(value, bool) or is_number(value) or _is_text(value)):
        raise UsageError(f"energy record: bad value for {shown(name)!r}")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_TEXT


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 64 and value.isprintable()


def _is_positive(value: Any) -> bool:
    return is_number(value) and value > 0


def _is_reference(value: Any) -> bool:
    """Return whether a JSON value contains the measured speed and power of the untuned job."""
    return isinstance(value, Mapping) and all(
        value.get(key) is None or _is_positive(value[key]) for key in ("units_per_s", "watts")
    )


def _is_response_point(value: Any) -> bool:
    """Return whether a JSON value contains a job's relative time and power at one operating point."""
    return (
        isinstance(value, Mapping)
        and isinstance(value.get("point"), Mapping)
        and all(_is_positive(value.get(key)) for key in ("time_ratio", "power_ratio"))
        and _is_name(value.get("source"))
    )


def _optional(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "mode": lambda value: value in MODES,
    "objective": _is_name,
    "slowdown_limit": _optional(lambda value: is_number(value) and 0 <= value <= 10),
    "progress": _is_name,
    "phase": _is_name,
    "reference": _optional(_is_reference),
    "points": lambda value: (
        isinstance(value, list | tuple) and len(value) <= MAX_POINTS and all(map(_is_response_point, value))
    ),
    "chosen": _optional(lambda value: isinstance(value, Mapping)),
    "chosen_source": _optional(_is_name),
    "probes": lambda value: type(value) is int and 0 <= value <= MAX_PROBES,
    "estimated_saving": _optional(lambda value: is_number(value) and -1e6 <= value <= 1),
    "exploration": lambda value: isinstance(value, bool),
}
