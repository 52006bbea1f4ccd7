"""The forecast made of the runs of one key: grids of seconds, watts and joules."""

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

_RECENCY_FACTOR: Final = 0.92  # of a run, by each newer one of its key
_SPREAD_RUN_COUNT: Final = 2.0  # runs that "like the newest, but different as runs differ" counts for
_SPREAD_RUNS: Final = 10
_MAX_UNIT_WATTS: Final = 1e9  # per unit; more is no measurement


@dataclass(frozen=True, slots=True, eq=False)
class Forecast:
    """What the runs of one key, and of the more general ones behind it, say of the next.

    Attributes:
        level: index in `LEVELS` of the key.
        seconds: of the run; with `by_limit`, shares of its time limit.
        watts: mean watts per unit (see `levels.units`); None: no run has its energy.
        joules: per unit, with `by_limit` also per second of the time limit; None likewise.
        runs: number of runs of this key.
        newest: Unix seconds of the newest one's end.
        endings: how many of them ended how.
        by_limit: see `seconds`.
        converted: runs under other caps than the job's, see `cap_response`.
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
    """Return the forecast of a key.

    Args:
        level: index in `LEVELS`.
        runs: of the key, oldest first, at least one.
        general: forecast of the next, more general key, made for the same caps.
        caps: of the job to predict for; runs under other caps are converted.
        second_factors: by how much the time of a run of this level differs from that of the run before.
        watt_factors: its watts likewise.
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
    # What is behind may count in shares of the limit: read with the newest limit.
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
    """Mix what was seen, what differs from it as runs differ, and what more general keys say.

    The first run of a key counts only as the middle of what is likely: that it repeats exactly is not known.
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
    """Return what a run's seconds are divided by: its time limit where shares of it are compared."""
    return (run.time_limit_s or 1.0) if by_limit else 1.0


def watts_of(run: ObservedRun) -> float | None:
    """Return mean watts per unit; None if not known, as of a run too short for any sample, or no figure."""
    if run.energy_joules is None or run.duration_s <= 0:
        return None
    watts = run.energy_joules / run.duration_s / units(run)
    return watts if watts <= _MAX_UNIT_WATTS else None


def _convert(run: ObservedRun, caps: Caps) -> tuple[float | None, float]:
    """Return a run's watts per unit and relative time as they would be under other caps."""
    watts_per_unit = watts_of(run)
    if watts_per_unit is None:
        return None, 1.0
    before = caps_of_row(row_of(run))
    return convert_run(watts_per_unit, gpu_watts(run, watts_per_unit), before, caps, tdp_watts(run.gpu_kind))


def _max_watts(runs: Sequence[ObservedRun], caps: Caps) -> float:
    """Return the watts per unit that the caps allow: those of the GPUs and the most beside them."""
    beside = [
        watts_per_unit - gpu_watts(run, watts_per_unit)
        for run in runs
        if (watts_per_unit := watts_of(run)) is not None
    ]
    return min(caps.unit_watts, caps.gpu_watts + max(beside, default=0.0))


def _clip(grid: Grid, most: float) -> Grid:
    return tuple(min(value, most) for value in grid)
