"""Random power series of programs, for the benchmark that tests the detector of periods.

Each family of programs is a generator. The constants of the detector were fitted to the families in
FITTED only. The families in HELD_OUT show how the detector performs on programs of other kinds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Random = np.random.Generator
Array = Any
FINE_PER_SAMPLE = 50
"""Points of the fine grid per sample."""


@dataclass(frozen=True, slots=True)
class PowerSeries:
    """Power samples of a synthetic program, with the periods that a search in them should find.

    `periods_s` has the lengths of the steps of the program's loops. It is empty if the series has no period.
    """

    times_s: Array
    watts: Array
    periods_s: tuple[float, ...]

    def error_of(self, seconds: float) -> float:
        """Return the relative error of an estimated period.

        The error is relative to the nearest true period of the series. It is infinite if the series has no
        period.
        """
        return min((abs(seconds / period_s - 1) for period_s in self.periods_s), default=np.inf)


@dataclass(frozen=True, slots=True)
class SyntheticProgram:
    """A program on a fine grid of times: its power, and the lengths of the steps of its loops."""

    watts: Array
    periods_s: tuple[float, ...] = ()


Family = Callable[[Random, Array, float], SyntheticProgram]
"""Returns a program, given fine times in seconds and the length of a step."""


def fine_hz(times: Array) -> float:
    """Return the number of points per second in an array of equally spaced times."""
    return 1 / float(times[1] - times[0])


def pick(rng: Random, low: float, high: float) -> float:
    """Return a random number from `low` to `high` whose logarithm is uniformly distributed."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def step_edges(rng: Random, end_s: float, period_s: float, jitter: float) -> Array:
    """Return random start times of the steps of a program.

    The lengths of the steps vary; `jitter` is their relative standard deviation.
    """
    count = int(1.5 * end_s / period_s) + 10
    lengths = period_s * np.clip(1 + jitter * rng.standard_normal(count), 0.3, 3.0)
    return np.concatenate(([0.0], np.cumsum(lengths))) - period_s * rng.uniform()


def mean_step(edges: Array, end_s: float) -> float:
    """Return the mean length of the program's steps between 0 and `end_s`.

    Only steps that lie completely in this time are used.
    """
    inside = edges[(edges >= 0) & (edges <= end_s)]
    return float(inside[-1] - inside[0]) / (len(inside) - 1)


def phases(times: Array, edges: Array) -> Array:
    """Return how many steps of the program, with fractions, are completed at each time."""
    return np.interp(times, edges, np.arange(len(edges)))


def pulses(phase: Array, duty: float) -> Array:
    """Return a signal that is 1 in the first part (`duty`) of each step and 0 in the rest."""
    return (phase % 1 < duty).astype(float)


def random_shape(rng: Random, phase: Array) -> Array:
    """Return the power over one step of a program, as 2 to 6 sections of constant power.

    The lengths and the powers of the sections are random.
    """
    sections = rng.integers(2, 7)
    cuts = np.sort(rng.uniform(0, 1, sections - 1))
    levels = rng.uniform(0, 1, sections)
    levels[0], levels[-1] = 1.0, rng.uniform(0, 0.5)
    return levels[np.searchsorted(cuts, phase % 1)]


def level(rng: Random, shape: Array, noise: float = 0.0) -> Array:
    """Return a power series in watts: an idle level plus a modulation of 10 to 60 % of the power.

    Args:
        rng: source of random numbers.
        shape: course of the modulation over time, 0 to 1.
        noise: standard deviation of added noise, as a fraction of the modulation.
    """
    top = pick(rng, 100, 900)
    depth = rng.uniform(0.1, 0.6)
    return top * (1 - depth + depth * shape) + noise * top * depth * rng.standard_normal(len(shape))


def plain(rng: Random, times: Array, period_s: float) -> SyntheticProgram:
    edges = step_edges(rng, times[-1], period_s, rng.uniform(0, 0.02))
    return SyntheticProgram(
        level(rng, pulses(phases(times, edges), rng.uniform(0.3, 0.9))), (mean_step(edges, times[-1]),)
    )


def noisy(rng: Random, times: Array, period_s: float) -> SyntheticProgram:
    edges = step_edges(rng, times[-1], period_s, rng.uniform(0, 0.03))
    shape = random_shape(rng, phases(times, edges))
    coarse = times[:: int(fine_hz(times) / 4)]
    slow = np.interp(times, coarse, rng.standard_normal(len(coarse)))
    watts = level(rng, shape + rng.uniform(0.05, 0.4) * slow, rng.uniform(0.05, 0.8))
    return SyntheticProgram(watts, (mean_step(edges, times[-1]),))


def jittery(rng: Random, times: Array, period_s: float) -> SyntheticProgram:
    edges = step_edges(rng, times[-1], period_s, rng.uniform(0.02, 0.15))
    return SyntheticProgram(
        level(rng, random_shape(rng, phases(times, edges))), (mean_step(edges, times[-1]),)
    )


def checkpoints(rng: Random, times: Array, period_s: float) -> SyntheticProgram:
    """Return the power of a program that pauses for a checkpoint after every 15 to 60 steps.

    The pause takes 1 to 8 s, at most a quarter of the time.
    """
    every = int(rng.integers(15, 61))
    pause_s = min(rng.uniform(1, 8), every * period_s / 3)
    lengths = period_s * (1 + rng.uniform(0, 0.03) * rng.standard_normal(int(times[-1] / period_s) + 20))
    edges, shapes, now = [], [], -rng.uniform() * every * period_s
    for index, length in enumerate(lengths.repeat(2)[: 4 * len(lengths)]):
        edges.append(now)
        shapes.append(index % (every + 1) == every)
        now += pause_s if shapes[-1] else length
        if now > times[-1]:
            break
    starts = np.array(edges)
    step = np.clip(np.searchsorted(starts, times, side="right") - 1, 0, len(starts) - 1)
    ends = np.append(starts[1:], now)
    phase = (times - starts[step]) / (ends[step] - starts[step])
    shape = np.where(np.array(shapes)[step], rng.uniform(0, 0.3), random_shape(rng, phase))
    return SyntheticProgram(level(rng, shape), (period_s,))


def harmonics(rng: Random, times: Array, period_s: float) -> SyntheticProgram:
    """Return a synthetic program whose power has a strong second, third or fourth harmonic.

    This harmonic is stronger than the fundamental, whose period is the true period of the program.
    """
    edges = step_edges(rng, times[-1], period_s, rng.uniform(0, 0.02))
    phase = phases(times, edges)
    shape = np.zeros_like(times)
    strong = rng.integers(2, 5)
    for order in range(1, 6):
        size = 1.0 if order == strong else rng.uniform(0.15, 0.6)
        shape += size * np.cos(2 * np.pi * (order * phase + rng.uniform()))
    return SyntheticProgram(
        level(rng, 0.5 + 0.2 * shape, rng.uniform(0, 0.2)), (mean_step(edges, times[-1]),)
    )


def micro_batches(rng: Random, times: Array, period_s: float) -> SyntheticProgram:
    """Return a synthetic training program whose steps consist of 2 to 8 equal micro-batches.

    The optimizer takes the last 5 to 40 % of each step, at another power.
    """
    edges = step_edges(rng, times[-1], period_s, rng.uniform(0, 0.02))
    phase = phases(times, edges) % 1
    optimizer = rng.uniform(0.05, 0.4)
    inner = phase / (1 - optimizer) * rng.integers(2, 9)
    shape = np.where(phase < 1 - optimizer, pulses(inner, rng.uniform(0.5, 0.9)), rng.uniform(0, 0.7))
    return SyntheticProgram(level(rng, shape, rng.uniform(0, 0.2)), (mean_step(edges, times[-1]),))


def aperiodic(rng: Random, times: Array, _: float) -> SyntheticProgram:
    """Return a power signal without any period, to test the detection of periods.

    The signal is coloured noise, random switching, a random walk or a constant.
    """
    count, hertz = len(times), fine_hz(times)
    kind = rng.integers(5)
    if kind == 0:
        shape = 0.5 + 0.01 * np.cumsum(rng.standard_normal(count)) / np.sqrt(hertz)
    elif kind == 1:
        switches = np.cumsum(rng.exponential(pick(rng, 0.3, 8), 4000))
        shape = (np.searchsorted(switches, times) % 2).astype(float)
    elif kind == 2:
        shape = 0.5 + 0.01 * rng.standard_normal(count)
    elif kind == 3:
        coarse = times[:: int(hertz * pick(rng, 0.1, 3))]
        shape = 0.5 + 0.2 * np.interp(times, coarse, rng.standard_normal(len(coarse)))
    else:
        shape = np.full(count, 0.5)
    return SyntheticProgram(level(rng, shape, rng.uniform(0, 0.1)))


def evaluation(rng: Random, times: Array, period_s: float) -> SyntheticProgram:
    """Return the power of a simulated training that is interrupted by evaluations.

    The steps of the evaluations have another length and power than those of the training.
    """
    cycle_s, share = period_s * rng.uniform(15, 60), rng.uniform(0.1, 0.3)
    other_s = period_s * pick(rng, 0.3, 0.8)
    train = random_shape(rng, phases(times, step_edges(rng, times[-1], period_s, rng.uniform(0, 0.02))))
    test = 0.7 * random_shape(rng, phases(times, step_edges(rng, times[-1], other_s, rng.uniform(0, 0.02))))
    testing = (times / cycle_s + rng.uniform()) % 1 < share
    right = (other_s,) if np.mean(testing) > 0.7 else (period_s,)  # the window may lie in one evaluation
    return SyntheticProgram(level(rng, np.where(testing, test, train)), right)


def drifting(rng: Random, times: Array, period_s: float) -> SyntheticProgram:
    """Return a program whose step time becomes 8 to 40 % longer or shorter during the run.

    If the change exceeds 12 %, the program has no correct period: no period describes the whole run.
    """
    change = rng.uniform(0.08, 0.4) * rng.choice((-1, 1))
    lengths = period_s * (1 + change * (times / times[-1] - 0.5))
    phase = np.cumsum(1 / lengths) / fine_hz(times)
    mean_s = float(times[-1]) / float(phase[-1])
    return SyntheticProgram(level(rng, random_shape(rng, phase)), (mean_s,) if abs(change) <= 0.12 else ())


def two_phases(rng: Random, times: Array, period_s: float) -> SyntheticProgram:
    """Return the power of a synthetic program that changes to a loop with another period.

    The search for the period must not find a single period for this program.
    """
    other_s = period_s * pick(rng, 1.15, 3) ** rng.choice((-1, 1))
    first = random_shape(rng, phases(times, step_edges(rng, times[-1], period_s, 0.01)))
    second = random_shape(rng, phases(times, step_edges(rng, times[-1], other_s, 0.01)))
    return SyntheticProgram(level(rng, np.where(times < times[-1] * rng.uniform(0.35, 0.65), first, second)))


def slow_sensor(rng: Random, times: Array, period_s: float) -> SyntheticProgram:
    """Return the power of a synthetic program as a slow sensor reports it.

    The sensor is a first-order filter with a resolution of 1 W. The power also drifts slowly, as with a
    change of temperature.
    """
    edges = step_edges(rng, times[-1], period_s, rng.uniform(0, 0.03))
    phase = phases(times, edges)
    watts = level(rng, random_shape(rng, phase), rng.uniform(0, 0.2))
    hertz = fine_hz(times)
    kernel = np.exp(-np.arange(int(3 * hertz)) / (hertz * pick(rng, 0.05, 0.6)))
    filtered = np.convolve(watts - watts[0], kernel / kernel.sum())[: len(watts)] + watts[0]
    return SyntheticProgram(
        np.round(filtered * (1 + rng.uniform(-0.1, 0.1) * times / times[-1])), (mean_step(edges, times[-1]),)
    )


def requests(rng: Random, times: Array, _: float) -> SyntheticProgram:
    """Return the power of a simulated server program, as a test of period detection.

    Requests arrive at random times and have random lengths. The series therefore has no period.
    """
    starts = np.cumsum(rng.exponential(pick(rng, 0.2, 3), 3000))
    lengths = pick(rng, 0.2, 3) * rng.gamma(4, 0.25, len(starts))
    running = np.searchsorted(starts, times) - np.searchsorted(np.sort(starts + lengths), times)
    return SyntheticProgram(level(rng, np.minimum(running, 3) / 3, rng.uniform(0, 0.1)))


def two_kinds_of_step(rng: Random, times: Array, period_s: float) -> SyntheticProgram:
    """Generate the power of a program whose training step consists of two different parts.

    The parts alternate in a fixed order, for example generator and discriminator. The true period is the
    time of both parts together.
    """
    edges = step_edges(rng, times[-1], period_s, rng.uniform(0, 0.02))
    phase = phases(times, edges) % 1
    cut = rng.uniform(0.3, 0.7)
    inner = np.where(phase < cut, phase / cut, (phase - cut) / (1 - cut))
    first, second = rng.uniform(0.6, 0.9, 2)
    shape = np.where(phase < cut, pulses(inner, first), rng.uniform(0.5, 0.95) * pulses(inner, second))
    return SyntheticProgram(level(rng, shape, rng.uniform(0, 0.1)), (mean_step(edges, times[-1]),))


def ramps(rng: Random, times: Array, period_s: float) -> SyntheticProgram:
    """Return a synthetic program whose power slowly rises and falls in each step of its loop.

    The rise and the fall have different rates.
    """
    edges = step_edges(rng, times[-1], period_s, rng.uniform(0, 0.04))
    phase, top = phases(times, edges) % 1, rng.uniform(0.1, 0.9)
    shape = np.where(phase < top, phase / top, (1 - phase) / (1 - top)) ** rng.uniform(0.5, 3)
    return SyntheticProgram(level(rng, shape, rng.uniform(0, 0.3)), (mean_step(edges, times[-1]),))


def two_loops(rng: Random, times: Array, period_s: float) -> SyntheticProgram:
    """Return the power of two periodic programs that run together and are independent.

    Each of the two periods is a right answer. A common multiple of the periods is a wrong answer.
    """
    other_s = period_s * pick(rng, 1.15, 3.7)
    first = random_shape(rng, phases(times, step_edges(rng, times[-1], period_s, 0.01)))
    second = random_shape(rng, phases(times, step_edges(rng, times[-1], other_s, 0.01)))
    return SyntheticProgram(level(rng, (first + second) / 2, rng.uniform(0, 0.1)), (period_s, other_s))


def growing(rng: Random, times: Array, period_s: float) -> SyntheticProgram:
    """Return a synthetic program whose steps become 15 to 50 % longer at several instants.

    The detector of periods must find no period, because no single period describes the whole power
    series.
    """
    changes = int(rng.integers(2, 5))
    stage = np.minimum((times / times[-1] * changes).astype(int), changes - 1)
    phase = np.cumsum(rng.uniform(1.15, 1.5) ** -stage / period_s) / fine_hz(times)
    return SyntheticProgram(level(rng, random_shape(rng, phase), rng.uniform(0, 0.1)))


def random_amplitudes(rng: Random, times: Array, period_s: float) -> SyntheticProgram:
    """Generate the power of a program with steps of equal length but varying power.

    The power varies from step to step, for example with the input of the step.
    """
    edges = step_edges(rng, times[-1], period_s, rng.uniform(0, 0.03))
    phase = phases(times, edges)
    heights = rng.uniform(rng.uniform(0.2, 0.8), 1, len(edges) + 1)
    shape = random_shape(rng, phase) * heights[np.minimum(phase.astype(int), len(edges))]
    return SyntheticProgram(level(rng, shape, rng.uniform(0, 0.1)), (mean_step(edges, times[-1]),))


def several_gpus(rng: Random, times: Array, period_s: float) -> SyntheticProgram:
    """Return the synthetic power of a program on 2 to 8 GPUs, summed over the GPUs.

    The GPUs work on the same step with different delays, as in a pipeline.
    """
    edges = step_edges(rng, times[-1], period_s, rng.uniform(0, 0.02))
    phase, gpus = phases(times, edges), int(rng.integers(2, 9))
    delay, duty = rng.uniform(0, 0.1), rng.uniform(0.3, 0.9)
    shape = sum(pulses(phase - gpu * delay, duty) for gpu in range(gpus)) / gpus
    return SyntheticProgram(level(rng, shape, rng.uniform(0, 0.1)), (mean_step(edges, times[-1]),))


FITTED: dict[str, Family] = {
    "plain": plain,
    "noisy": noisy,
    "jittery": jittery,
    "checkpoints": checkpoints,
    "harmonics": harmonics,
    "micro_batches": micro_batches,
    "aperiodic": aperiodic,
    "evaluation": evaluation,
    "drifting": drifting,
    "two_phases": two_phases,
    "slow_sensor": slow_sensor,
    "requests": requests,
    "two_kinds_of_step": two_kinds_of_step,
}
HELD_OUT: dict[str, Family] = {
    "ramps": ramps,
    "two_loops": two_loops,
    "growing": growing,
    "random_amplitudes": random_amplitudes,
    "several_gpus": several_gpus,
}


def sample(rng: Random, family: Family, hertz: float, *, regular: bool, short: bool = False) -> PowerSeries:
    """Return a random power series of a program.

    Args:
        rng: random numbers.
        family: generator of the program's power.
        hertz: samples per second.
        regular: whether the sampling interval is constant; otherwise it varies by 20 % in either
            direction.
        short: whether the program's steps are shorter than two sampling intervals. The only
            correct period is then the length of a step.
    """
    seconds = rng.uniform(400, 1200) / hertz
    period_s = pick(rng, 0.3, 1.9) / hertz if short else pick(rng, 2.5, 150) / hertz
    period_s = min(period_s, seconds / 6) if not short else period_s
    fine_step_s = 1 / (hertz * FINE_PER_SAMPLE)
    fine = np.arange(0, seconds, fine_step_s)
    program = family(rng, fine, period_s)
    count = int(seconds * hertz) - 2
    intervals = np.full(count, 1.0) if regular else 1 + rng.uniform(-0.2, 0.2, count)
    times = np.cumsum(intervals) / hertz
    times = times[times < fine[-1]]
    if rng.integers(2):  # the mean power since the previous sample, from an energy counter
        energy = np.concatenate(([0.0], np.cumsum(program.watts))) * fine_step_s
        edges = np.concatenate(([0.0], times))
        watts = np.diff(np.interp(edges, np.append(fine, fine[-1] + fine_step_s), energy)) / np.diff(edges)
    else:  # the power at the time of the sample
        watts = np.interp(times, fine, program.watts)
    return PowerSeries(times, watts, program.periods_s)
