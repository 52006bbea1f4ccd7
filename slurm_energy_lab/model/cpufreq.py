"""Functions that compute the frequency which a core requests under its cpufreq settings.

There is one function for each cpufreq driver. The functions are pure. They do not take the power of
the core into account. The modules `cpu_physics` and `package` apply turbo bins and power limits to
the result.
"""

from __future__ import annotations

import itertools

from slurm_energy.errors import UsageError
from slurm_energy_lab.model.profile import ACTIVE_DRIVERS, CpufreqProfile
from slurm_energy_lab.model.requests import FrequencyRequest

_EPP_VALUES = {
    "default": 128,
    "performance": 0,
    "balance_performance": 128,
    "balance_power": 192,
    "power": 255,
}
"""EPP names and the numbers that intel_pstate writes for them (kernel, intel_pstate.rst)."""
_EPP_CEILING = ((0, 1.0), (128, 1.0), (192, 0.9), (255, 0.75))
"""(EPP, share of the allowed frequency range used under full load), linear in between. Assumed."""
_UP_THRESHOLD = 0.8
"""Busy share above which ondemand selects the maximum (order of up_threshold in the kernel's governors)."""


def default_request(cpufreq: CpufreqProfile) -> FrequencyRequest:
    """Return the frequency settings that every CPU has after power-on."""
    return FrequencyRequest(
        governor=cpufreq.governor,
        min_khz=cpufreq.min_khz,
        max_khz=cpufreq.cpuinfo_max_khz,
        setspeed_khz=None,
        epp=cpufreq.epp,
        boost=True,
    )


def epp_value(epp: str) -> int:
    """Return an energy performance preference as a number from 0 to 255.

    The preference is given as a name or as digits.

    Raises:
        UsageError: the preference is neither a known name nor 0 to 255.
    """
    value = _EPP_VALUES.get(epp)
    if value is None and epp.isascii() and epp.isdigit() and len(epp) <= 3:
        value = int(epp)
    if value is None or value > 255:
        raise UsageError(f"EPP '{epp[:40]}' is not known", todo=f"one of {', '.join(_EPP_VALUES)} or 0-255")
    return value


def check_request(cpufreq: CpufreqProfile, request: FrequencyRequest) -> None:
    """Check that the driver accepts frequency settings.

    Raises:
        UsageError: the driver does not have the governor, the preference is unknown, or a frequency is not
            positive.
    """
    if request.governor not in cpufreq.governors:
        raise UsageError(
            f"governor '{request.governor[:40]}' is not offered by {cpufreq.driver}",
            todo=f"one of {', '.join(cpufreq.governors)}",
        )
    if request.epp is not None:
        epp_value(request.epp)
    if request.min_khz <= 0 or request.max_khz <= 0:
        raise UsageError(f"frequencies {request.min_khz}..{request.max_khz} kHz are invalid")


def target_khz(cpufreq: CpufreqProfile, request: FrequencyRequest, utilisation: float) -> int:
    """Return the frequency in kHz that the governor selects for a core within the bounds in force.

    The value does not yet include the limits of turbo and of the power limits.

    Args:
        cpufreq: properties of the cpufreq driver.
        request: settings of the CPU.
        utilisation: busy share of the core, 0 to 1.
    """
    low, high = allowed_range_khz(cpufreq, request)
    if cpufreq.driver in ACTIVE_DRIVERS:
        target = _active_driver_khz(request, low, high, utilisation)
    else:
        target = _generic_governor_khz(request, low, high, utilisation)
    return _rounded_to_table(cpufreq, request, min(high, max(low, target)))


def allowed_range_khz(cpufreq: CpufreqProfile, request: FrequencyRequest) -> tuple[int, int]:
    """Return the minimum and maximum frequency in kHz that the settings allow within the hardware's range.

    Without boost the base frequency is the maximum.
    """
    hardware_max = cpufreq.max_khz if request.boost else cpufreq.base_khz
    high = max(cpufreq.min_khz, min(request.max_khz, hardware_max))
    return min(high, max(cpufreq.min_khz, request.min_khz)), high


def _active_driver_khz(request: FrequencyRequest, low: int, high: int, utilisation: float) -> float:
    """Return the target frequency in kHz for drivers whose firmware selects the frequency.

    Governor `performance` selects the maximum. Otherwise the energy performance preference determines an
    upper bound, and the target rises to this bound with the load.
    """
    if request.governor == "performance":
        return high
    epp = epp_value(request.epp or "default")
    if epp == 0:
        return high
    ceiling = low + (high - low) * _interpolate(epp)
    return low + (ceiling - low) * min(1.0, utilisation / _UP_THRESHOLD)


def _generic_governor_khz(request: FrequencyRequest, low: int, high: int, utilisation: float) -> float:
    """Return the frequency in kHz that a generic governor of Linux selects in the steady state.

    Args:
        request: settings of the CPU.
        low: minimum frequency in kHz.
        high: maximum frequency in kHz.
        utilisation: busy share of the core, 0 to 1.
    """
    if request.governor == "performance":
        return high
    if request.governor == "powersave":
        return low
    if request.governor == "userspace":
        return request.setspeed_khz or high
    if request.governor == "schedutil":
        return 1.25 * utilisation * high
    if utilisation >= _UP_THRESHOLD:  # ondemand, conservative
        return high
    return low + (high - low) * utilisation


def _interpolate(epp: int) -> float:
    for (left, below), (right, above) in itertools.pairwise(_EPP_CEILING):
        if epp <= right:
            return below + (above - below) * (epp - left) / (right - left)
    return _EPP_CEILING[-1][1]


def _rounded_to_table(cpufreq: CpufreqProfile, request: FrequencyRequest, khz: float) -> int:
    """Return a frequency in kHz rounded as the driver does.

    Drivers with a frequency table round down to an entry of the table. The first entry enables turbo.
    """
    table = cpufreq.available_khz
    if not table:
        return int(khz)
    entry = next((step for step in table if step <= khz), table[-1])
    return cpufreq.max_khz if request.boost and entry == table[0] else entry
