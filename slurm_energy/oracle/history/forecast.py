"""The forecast from the runs of one similarity key: distributions of seconds, watts and joules.

A similarity key groups runs that have attributes such as the user and the script in common (`similarity`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from slurm_energy.oracle.history.cap_response import Caps, convert_run, tdp_watts
from slurm_energy.oracle.history.distribution import EVEN, Grid, Observation, mix, scale_grid, spread_by
from slurm_energy.oracle.history.observed_run import ObservedRun, RunEnding
from slurm_energy.oracle.history.similarity import LEVELS, caps_of_row, row_of, units
from slurm_energy.oracle.history.track_record import gpu_watts

_RECENCY_FACTOR: Final = 0.92  # factor on the weight of a run for each newer run of the same key
_SPREAD_RUN_COUNT: Final = 2.0  # weight in runs: newest runs times typical variation
_SPREAD_RUNS: Final = 10
_MAX_UNIT_WATTS: Final = 1e9  # per unit; higher values are implausible


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """Forecast of the next run of a job from similar earlier runs.

    Groups of similar runs are identified by similarity keys, from specific to general. The forecast uses the
    runs of one key and the runs of its more general keys.

    Attributes:
        level: index of the key's similarity level in `LEVELS`.
        seconds: distribution of the run time, in seconds or, if `by_limit` is true, as a share of the time
            limit.
        watts: distribution of the mean watts per unit (GPU or node); None means that the energy of no run is
            known.
        joules: distribution of the joules per unit. If `by_limit` is true, the joules per unit are also
            divided by the seconds of the time limit. None means that the energy of no run is known.
        runs: number of runs of this key.
        newest: end of the newest run in Unix seconds.
        endings: number of runs by the way in which they ended.
        by_limit: whether times are shares of the time limit.
        converted: number of runs that had other power caps than the job. Their time and watts were converted
            to the job's caps (`cap_response`).
    """

    level: int
    seconds: Grid
    watts: Grid | None
    joules: Grid | None
    runs: int
    newest: float
    endings: Mapping[RunEnding, int]
    by_limit: bool
    converted: int = 0


def make_forecast(
    level: int,
    runs: Sequence[ObservedRun],
    general: Forecast | None,
    caps: Caps,
    second_factors: Sequence[float],
    watt_factors: Sequence[float],
) -> Forecast:
    """Return the forecast of the next run of similar jobs, computed from their earlier runs.

    Runs are similar if they have the same similarity key. Keys exist at several levels, from specific to
    general.

    Args:
        level: index of the key's similarity level in `LEVELS`.
        runs: runs of the key, oldest first. There must be at least one.
        general: forecast of the next more general key for the same power caps; None means that no more
            general key has a forecast.
        caps: power caps of the job to predict. The time and watts of runs under other caps are converted to
            these caps.
        second_factors: typical ratios of the times of successive runs at this level.
        watt_factors: typical ratios of the watts of successive runs at this level.
    """
    newest_first = list(reversed(runs))
    by_limit = LEVELS[level].by_limit
    limited = newest_first[0].time_limit_s is not None
    seconds: list[Observation] = []
    joules: list[Observation] = []
    watts: list[Observation] = []
    for age, run in enumerate(newest_first):
        weight, censored, scale = _RECENCY_FACTOR**age, not run.ending.by_itself, run_scale(run, by_limit)
        watts_per_unit, time = _convert(run, caps)
        seconds.append((run.duration_s * time / scale, weight, censored))
        if watts_per_unit is not None:
            watts.append((watts_per_unit, weight, False))
            joules.append((watts_per_unit * run.duration_s * time / scale, weight, censored))
    # The more general times may be shares of the time limit: the newest limit converts them to seconds.
    back = run_scale(newest_first[0], True) if general and general.by_limit and not by_limit else 1.0
    most_watts = _max_watts(newest_first, caps)
    prior = general.seconds if general else EVEN if by_limit and limited else None
    more = (general.watts, general.joules) if general else (None, None)
    weight = LEVELS[level].general_weight
    return Forecast(
        level=level,
        seconds=_grid(seconds, prior and scale_grid(prior, back), weight, second_factors),
        watts=_clip(_grid(watts, more[0], weight, watt_factors), most_watts) if watts else more[0],
        joules=_grid(joules, more[1] and scale_grid(more[1], back), weight, second_factors)
        if joules
        else more[1] and scale_grid(more[1], back),
        runs=len(runs),
        newest=max(run.end for run in runs),
        endings=Counter(run.ending for run in runs),
        by_limit=by_limit and limited,
        converted=sum(watts_of(run) is not None and caps_of_row(row_of(run)) != caps for run in runs),
    )


def _grid(
    observations: Sequence[Observation], general: Grid | None, general_weight: float, factors: Sequence[float]
) -> Grid:
    """Return the forecast distribution of the next value of similar runs.

    The runs share a similarity key (a description of a group of runs). A value is the time, watts or joules
    of a run. A single run determines only the middle of the distribution, because one run does not show how
    much runs vary.

    Args:
        observations: values of the key's runs, newest first. There must be at least one.
        general: distribution of the next more general key; None means that no more general key exists.
        general_weight: weight of `general` in runs.
        factors: equally likely ratios of the values of successive runs. The newest values are multiplied by
            these ratios.
    """
    total = sum(weight for _, weight, _ in observations)
    alike = max(0.0, total - 1) / total
    newest = observations[:_SPREAD_RUNS]
    share = _SPREAD_RUN_COUNT / sum(weight for _, weight, _ in newest) / len(factors)
    points = [(value, weight * alike, censored) for value, weight, censored in observations]
    points += [
        (value * (1.0 if censored else factor), weight * share, censored)
        for value, weight, censored in newest
        for factor in factors
    ]
    if general is None:
        general = spread_by(mix(observations), factors)
    return mix(points, general, general_weight)


def run_scale(run: ObservedRun, by_limit: bool) -> float:
    """Return the number by which the seconds of a run are divided to compare runs.

    If `by_limit` is true, it is the run's time limit in seconds. It is 1 otherwise, and also for a run
    without a time limit.
    """
    return (run.time_limit_s or 1.0) if by_limit else 1.0


def watts_of(run: ObservedRun) -> float | None:
    """Return a run's mean watts per unit (GPU or node).

    None means that the power is unknown or implausible. It is unknown, for example, if a run was too short
    for any power sample.
    """
    if run.energy_joules is None or run.duration_s <= 0:
        return None
    watts = run.energy_joules / run.duration_s / units(run)
    return watts if watts <= _MAX_UNIT_WATTS else None


def _convert(run: ObservedRun, caps: Caps) -> tuple[float | None, float]:
    """Return the power and the time of an observed run, converted to other power caps.

    The first value is the mean watts per unit (GPU or node) under `caps`. The second value is the time under
    `caps` divided by the actual time. If the watts of the run are unknown, the result is (None, 1.0).
    """
    watts_per_unit = watts_of(run)
    if watts_per_unit is None:
        return None, 1.0
    before = caps_of_row(row_of(run))
    return convert_run(watts_per_unit, gpu_watts(run, watts_per_unit), before, caps, tdp_watts(run.gpu_kind))


def _max_watts(runs: Sequence[ObservedRun], caps: Caps) -> float:
    """Return the maximum watts that a job may draw per GPU, or per node if it has no GPUs.

    `caps` are the power caps of the job. The maximum is the lower of two values. The first value is the cap
    of the unit (GPU or node). The second value is the cap of the GPU plus the highest watts of the other
    components in any of the runs. Without a cap, the maximum is infinity.
    """
    beside = [
        watts_per_unit - gpu_watts(run, watts_per_unit)
        for run in runs
        if (watts_per_unit := watts_of(run)) is not None
    ]
    return min(caps.unit_watts, caps.gpu_watts + max(beside, default=0.0))


def _clip(grid: Grid, most: float) -> Grid:
    return tuple(min(value, most) for value in grid)
