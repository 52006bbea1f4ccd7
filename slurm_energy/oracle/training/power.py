"""Mean power of one training step in watts, and the clock that a power limit permits.

All functions are pure and also accept arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from slurm_energy.oracle.training.parameters import Scalars, Theta
from slurm_energy.oracle.training.timing import StepTimes, device_s, step_s

_HALVINGS = 8


def phase_watts(static_watts: Any, tdp_watts: Any, utilisation: Any, scale: Any) -> Any:
    """Return the power in watts of a device in one phase of a training step.

    It is the static power plus a fraction of the range from static power to design power.

    Args:
        static_watts: watts without work.
        tdp_watts: design power.
        utilisation: fraction of the range from `static_watts` to `tdp_watts`.
        scale: factor on the watts above `static_watts`.

    Source: thesis, Eq. 4.14.
    """
    return static_watts + utilisation * (tdp_watts - static_watts) * scale


def mean_watts(phases: tuple[tuple[Any, Any], ...], total_s: Any) -> Any:
    """Return the mean power in watts of a training step, from the power of its phases.

    Source: thesis, Eq. 4.15.

    Args:
        phases: watts and seconds of each phase of the step, such as computing and waiting.
        total_s: duration of the step in seconds.
    """
    return sum(watts * seconds for watts, seconds in phases) / total_s


def voltage_square(clock: Any, theta: Theta) -> Any:
    """Return (V / V_max)^2, the square of the relative voltage at a clock.

    `clock` is a fraction of the maximum clock. The voltage V is constant up to the clock
    `theta.voltage_knee` and rises linearly above it.
    """
    risen = np.maximum(0.0, clock - theta.voltage_knee) / (1.0 - theta.voltage_knee)
    volts = theta.voltage_floor + (1.0 - theta.voltage_floor) * risen
    return volts * volts


def _weighted_compute_s(times: StepTimes, theta: Theta, scalars: Scalars) -> Any:
    weighted = (
        times.gemm_s * theta.power_gemm + times.conv_s * theta.power_conv + times.alu_s * theta.power_alu
    )
    return weighted * scalars.core_power


def _weighted_memory_s(times: StepTimes, theta: Theta, scalars: Scalars) -> Any:
    return (times.memory_s * scalars.memory_power + times.optimizer_s) * theta.power_memory


def utilisation(times: StepTimes, theta: Theta, scalars: Scalars, clock: Any = 1.0) -> Any:
    """Return the utilisation of a device during work, which determines its power.

    The utilisation is a weighted sum of compute time and memory time, divided by the working time. The
    weight of the compute time contains the square of the voltage V at the clock.

    The reason for V^2 is the energy of an operation. At any clock, an operation switches the same number of
    transistors, each at the voltage of the clock. Its energy is therefore proportional to V^2. The energy of
    memory does not depend on the clock.

    Args:
        times: parts of the step at the maximum clock.
        theta: parameters of the device.
        scalars: factors of the workload.
        clock: clock f as a fraction of the maximum clock.
    """
    switched = _weighted_compute_s(times, theta, scalars) * voltage_square(clock, theta)
    return (switched + _weighted_memory_s(times, theta, scalars)) / device_s(times, theta, clock)


def working_watts(times: StepTimes, theta: Theta, scalars: Scalars, tdp_watts: Any, clock: Any = 1.0) -> Any:
    """Return the mean watts of a device while it works, without communication and waiting.

    `clock` is a share of the maximum clock.
    """
    used = utilisation(times, theta, scalars, clock)
    return phase_watts(theta.static_share * tdp_watts, tdp_watts, used, theta.power_scale)


def clock_under(
    times: StepTimes, theta: Theta, scalars: Scalars, tdp_watts: Any, cap_watts: Any, highest: Any = 1.0
) -> Any:
    """Return the highest clock at which the watts of the working device do not exceed a power limit.

    If the limit is exceeded at every clock, the lowest clock is returned.

    Args:
        times: parts of the step at the maximum clock.
        theta: parameters of the device.
        scalars: factors of the workload.
        tdp_watts: design power, which also acts as a limit.
        cap_watts: power limit in watts; infinity means no limit.
        highest: clock limit as a share of the maximum clock.

    Returns:
        Share of the maximum clock, accurate to 0.01 %.
    """
    static_watts = theta.static_share * tdp_watts
    budget = (np.minimum(cap_watts, tdp_watts) - static_watts) / (
        (tdp_watts - static_watts) * theta.power_scale
    )
    core, stream = _weighted_compute_s(times, theta, scalars), _weighted_memory_s(times, theta, scalars)

    def excess(clock: Any) -> Any:
        """Return how far the power at a clock is above the power limit, on an arbitrary scale.

        The value rises with the clock. It is 0 at the clock at which the power equals the limit.
        """
        return core * voltage_square(clock, theta) + stream - budget * device_s(times, theta, clock)

    high = np.maximum(highest, theta.clock_floor)
    low = np.minimum(theta.clock_floor, high) + 0.0 * budget
    high = high + 0.0 * low
    over = excess(high)
    within_cap = over <= 0.0
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        above = excess(middle)
        fits = above <= 0.0
        low, high, over = (
            np.where(fits, middle, low),
            np.where(fits, high, middle),
            np.where(fits, over, above),
        )
    under = excess(low)
    inside = np.clip(-under / np.where(over > under, over - under, 1.0), 0.0, 1.0)
    return np.where(within_cap, np.maximum(highest, theta.clock_floor), low + inside * (high - low))


def step_watts(times: StepTimes, theta: Theta, scalars: Scalars, tdp_watts: Any, clock: Any = 1.0) -> Any:
    """Return the mean watts of one device over a step, at most its design power.

    The mean includes work, communication and waiting for the host (thesis, Eq. 4.15). `clock` is a share of
    the maximum clock.
    """
    static_watts = theta.static_share * tdp_watts
    total_s, busy_s = step_s(times, theta, clock), device_s(times, theta, clock)
    wait_s = np.maximum(0.0, total_s - busy_s - times.link_s)
    launching = theta.power_wait * times.launch_s / times.host_s
    waiting, communicating = (
        phase_watts(static_watts, tdp_watts, used, 1.0) for used in (launching, theta.power_link)
    )
    working = working_watts(times, theta, scalars, tdp_watts, clock)
    mean = mean_watts(((working, busy_s), (communicating, times.link_s), (waiting, wait_s)), total_s)
    return np.minimum(mean, tdp_watts)
