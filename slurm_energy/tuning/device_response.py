"""Possible responses of a device to a power limit or a clock bound, from a physical model.

A response is the relative time and power. The model draws samples of its parameters from wide physical
ranges. In the model, dynamic power follows V²f. The voltage V falls with the clock f down to a transition
clock and is constant below it. The time follows a roofline between work that scales with the clock and work
that does not. A sample for GPUs is more likely to be kept if it agrees well with published responses of
GPUs.
"""

from __future__ import annotations

import numpy as np

from slurm_energy.tuning.ensemble import Array, Single

_CLOCKS = np.linspace(0.08, 1.0, 56)
_LIMITS = np.linspace(0.0, 1.0, 81)
_POOL = 12
"""Samples drawn for each sample kept."""
_PUBLISHED_LIMITS = np.array([0.9, 0.8, 0.7, 0.6, 0.5])
_PUBLISHED_TIMES = np.array(
    [
        [1.03, 1.08, 1.16, 1.29, 1.50],
        [1.02, 1.05, 1.11, 1.20, 1.36],
        [1.01, 1.02, 1.05, 1.12, 1.25],
        [1.05, 1.20, 1.60, 2.20, 3.00],
    ]
)
"""Time ratios at `_PUBLISHED_LIMITS`, shares of the own draw, of compute-bound, mixed and memory-bound work
on data-center GPUs, and of language models on a GPU whose memory draws a large constant power."""
_PUBLISHED_SHARES = np.array([0.3, 0.3, 0.25, 0.15])
_PUBLISHED_SPREAD = np.array([0.03, 0.06, 0.10, 0.18, 0.30])


class DeviceResponse:
    """Random samples of how one busy device responds to lower clocks and power limits.

    Each response is relative to the device without a limit. Each sample describes a program on a chip by
    these quantities:

    - the static share of the power, and the memory's share of the power;
    - the transition clock and voltage;
    - the share of the time that scales with the clock;
    - the sharpness of the roofline;
    - the minimum clock that a power limit can reach.
    """

    def __init__(self, generator: np.random.Generator, samples: int, like_gpus: bool) -> None:
        """Draw random device responses and tabulate them over clocks and over power limits.

        Args:
            generator: source of random numbers.
            samples: number of samples.
            like_gpus: whether samples that agree with published responses of GPUs are preferred.
        """
        log_time, log_power = _drawn(generator, samples * (_POOL if like_gpus else 1))
        agreement = _agreement(log_time, log_power) if like_gpus else None
        kept = generator.choice(len(log_time), samples, p=agreement, replace=like_gpus)
        self.samples = samples
        clock_time, clock_power = log_time[kept], log_power[kept]
        power = np.exp(clock_power)
        limit_time = np.empty((samples, len(_LIMITS)))
        limit_power = np.empty((samples, len(_LIMITS)))
        for row in range(samples):
            limit_time[row] = np.interp(_LIMITS, power[row], clock_time[row])
            limit_power[row] = np.interp(_LIMITS, power[row], clock_power[row])
        self._clock = _stacked(clock_time, clock_power)
        self._limit = _stacked(limit_time, limit_power)

    def at_limit(self, limit: Single) -> tuple[Single, Single]:
        """Return the effect of power limits on time and power, for K random samples of a device.

        Args:
            limit: for each sample, J limits divided by the power without a limit.

        Returns:
            The logarithms of the relative time and of the relative power, shape (K, J) each.
        """
        return _interpolated(self._limit, limit * np.float32(len(_LIMITS) - 1))

    def at_clock(self, clock: Single) -> tuple[Single, Single]:
        """Return the logarithms of time and power at J clocks, for K random responses of the device.

        Both results have the shape (K, J). The argument `clock` contains relative clocks: each clock divided
        by the clock without a bound.
        """
        step = _CLOCKS[1] - _CLOCKS[0]
        return _interpolated(self._clock, (clock - np.float32(_CLOCKS[0])) * np.float32(1.0 / step))


def _drawn(generator: np.random.Generator, samples: int) -> tuple[Array, Array]:
    """Draw K random samples of a device's response to its clock from a physical model.

    Return the logarithms of relative time and of relative power at the G clocks `_CLOCKS`, shape (K, G)
    each.
    """

    def draw(low: float, high: float) -> Array:
        return generator.uniform(low, high, samples)[:, None]

    static = draw(0.05, 0.45)
    memory = draw(0.0, 0.35)
    transition = draw(0.4, 0.85)
    voltage_floor = draw(0.5, 0.9)
    compute = draw(0.02, 1.0)
    sharpness = np.exp(draw(0.0, np.log(6.0)))
    follows_work = draw(0.0, 1.0)
    clock = np.maximum(_CLOCKS, draw(0.1, 0.4))
    slope = (1.0 - voltage_floor) / (1.0 - transition)
    voltage = np.maximum(voltage_floor, 1.0 - slope * (1.0 - clock))
    work = (compute / clock) ** sharpness + (1.0 - compute) ** sharpness
    log_time = np.log(work / (compute**sharpness + (1.0 - compute) ** sharpness)) / sharpness
    time = np.exp(log_time)
    dynamic = voltage**2 * (follows_work / time + (1.0 - follows_work) * clock)
    power = static + (1.0 - static) * (memory / time + (1.0 - memory) * dynamic)
    return log_time, np.log(power)


def _agreement(log_time: Array, log_power: Array) -> Array:
    """Return how probable each sampled device response is in view of published measurements.

    The measurements are run times of programs under power limits.
    """
    log_limits = np.log(_PUBLISHED_LIMITS)
    # Power rises with the clock in every row: the last clock below the limit is near enough.
    column = np.array([(log_power <= limit).sum(axis=1) for limit in log_limits]).T
    times = np.take_along_axis(log_time, np.clip(column, 0, log_time.shape[1] - 1), axis=1)
    distance = (times[:, None, :] - np.log(_PUBLISHED_TIMES)) / _PUBLISHED_SPREAD
    likelihood = np.exp(-0.5 * np.minimum((distance**2).mean(axis=2) * 2.0, 50.0)) @ _PUBLISHED_SHARES
    total: float = likelihood.sum()
    return np.asarray(likelihood / total)


def _stacked(time: Array, power: Array) -> Single:
    """Combine the tables of relative time and relative power into one array of shape (K, G, 2).

    The tables have one row for each of K samples and one column for each of G device states. The array has
    single precision, because this halves the time of a decision.
    """
    return np.stack((time, power), axis=2).astype(np.float32)


def _interpolated(tables: Single, place: Single) -> tuple[Single, Single]:
    """Return the values of two tables at fractional column positions, by linear interpolation.

    Each of the two results has the shape (K, J).
    """
    rows, columns, _ = tables.shape
    place = np.clip(place, np.float32(0.0), np.float32(columns - 1))
    lower = np.minimum(place.astype(np.int32), columns - 2)
    share = (place - lower.astype(np.float32))[:, :, None]
    lower += (np.arange(rows, dtype=np.int32) * columns)[:, None]
    flat = tables.reshape(rows * columns, 2)
    below = flat.take(lower, axis=0)
    values = below + (flat.take(lower + 1, axis=0) - below) * share
    return values[:, :, 0], values[:, :, 1]
