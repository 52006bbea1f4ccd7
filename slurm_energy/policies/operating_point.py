"""Operating points: values of the hardware settings (knobs) that tuning changes.

All nodes and GPUs of a job share one operating point.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slurm_energy.errors import UsageError
from slurm_energy.quantities import is_number, shown

_MAX_NAME = 64


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """Values of the knobs that tuning changes.

    None means that the knob keeps the value that it had before the job.

    Attributes:
        gpu_limit_watts: power limit of each GPU.
        gpu_clock_mhz: upper bound of the graphics clock of each GPU.
        gpu_power_profile: name of the NVIDIA workload power profile of each GPU.
        package_limit_watts: power limit of each processor package.
        cpu_max_mhz: upper frequency bound of every CPU.
        cpu_epp: energy_performance_preference of every CPU.
        boost: whether frequencies above the base frequency are allowed.
    """

    gpu_limit_watts: float | None = None
    gpu_clock_mhz: float | None = None
    gpu_power_profile: str | None = None
    package_limit_watts: float | None = None
    cpu_max_mhz: float | None = None
    cpu_epp: str | None = None
    boost: bool | None = None

    def __str__(self) -> str:
        """Return the operating point as text, for example `GPU limit 250 W, CPU at most 2400 MHz`."""
        texts = [
            text.format(value) for key, text in _TEXTS.items() if (value := getattr(self, key)) is not None
        ]
        if self.boost is not None:
            texts.append(f"boost {'on' if self.boost else 'off'}")
        return ", ".join(texts) or "untuned"

    def to_json(self) -> dict[str, Any]:
        """Return the operating point as a dict for JSON. Knobs that keep their values are left out."""
        return {key: value for key, value in dataclasses.asdict(self).items() if value is not None}

    @classmethod
    def from_json(cls, data: Any) -> OperatingPoint:
        """Build a point from a dict that `to_json` returned.

        Raises:
            UsageError: a key is unknown, or a value has the wrong type or is not above 0.
        """
        if not isinstance(data, dict):
            raise UsageError("operating point: not a JSON object")
        for key, value in data.items():
            check = _CHECKS.get(key)
            if check is None or not check(value):
                raise UsageError(f"operating point: bad value for '{shown(str(key), 60)}'")
        return cls(**data)


UNTUNED = OperatingPoint()
"""The point at which every knob keeps the value that it had before the job."""

_TEXTS = {
    "gpu_limit_watts": "GPU limit {:g} W",
    "gpu_clock_mhz": "GPU clock at most {:g} MHz",
    "gpu_power_profile": "GPU power profile {}",
    "package_limit_watts": "package limit {:g} W",
    "cpu_max_mhz": "CPU at most {:g} MHz",
    "cpu_epp": "CPU preference {}",
}


def _is_positive(value: Any) -> bool:
    return is_number(value) and value > 0


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MAX_NAME and value.isprintable()


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "gpu_limit_watts": _is_positive,
    "gpu_clock_mhz": _is_positive,
    "gpu_power_profile": _is_name,
    "package_limit_watts": _is_positive,
    "cpu_max_mhz": _is_positive,
    "cpu_epp": _is_name,
    "boost": lambda value: isinstance(value, bool),
}
