"""The runs in memory by key, each key with its newest few, and the forecasts made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from slurm_energy.oracle.history.distribution import EVEN, Grid, Observation, mixed, spread, times
from slurm_energy.oracle.history.levels import LEVELS, Job, Key, Row, keys, row_of, units
from slurm_energy.oracle.history.runs import Ending, Run
from slurm_energy.oracle.history.surprise import Surprise

RUNS_PER_KEY: Final = 64
"""Newest runs kept of each key; one more would weigh less than 1 % of the newest."""

MOST_KEYS: Final = 200_000

_KEPT_WEIGHT: Final = 0.92  # of a run, by each newer one of its key
_SPREAD_WEIGHT: Final = 2.0  # runs that "like the newest, but different as runs differ" counts for
_SPREAD_RUNS: Final = 10
_MADE_PER_KEY: Final = 8
_MOST_PATHS: Final = 200_000
_MOST_WATTS: Final = 1e9  # per unit; more is no measurement


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
    """

    level: int
    seconds: Grid
    watts: Grid | None
    joules: Grid | None
    runs: int
    newest: float
    endings: Mapping[Ending, int]
    by_limit: bool


@dataclass(slots=True, eq=False)
class _Entry:
    """The runs of a key, and the forecasts made of them, by what was behind each."""

    level: int
    runs: list[Run] = field(default_factory=list)  # a deque would take 0.6 kB for a single run
    learned: int = 0
    made: dict[Forecast | None, Forecast] = field(default_factory=dict)

    def knows_no_more_than(self, other: _Entry) -> bool:
        """Whether it has the runs of a more specific key only, which would then count twice."""
        return self.learned == other.learned and self.runs[-1] is other.runs[-1]


class History:
    """What is remembered of runs. Not for several threads at once.

    Args:
        most_keys: bound on memory, about 0.5 kB a key, runs included. Where every job has a name of its own
            there are several keys a run; beyond the bound keys of the oldest runs are dropped.
    """

    def __init__(self, most_keys: int = MOST_KEYS) -> None:
        self._most_keys = most_keys
        self._entries: dict[Key, _Entry] = {}
        self._surprises = [(Surprise(), Surprise()) for _ in LEVELS]
        self._paths: dict[tuple[_Entry, ...], Forecast] = {}
        self.runs_learned = 0

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._entries)

    def learn(self, run: Run) -> None:
        """Remember a run. Learn runs in the order of their ends; a little disorder does no harm."""
        self._paths.clear()
        for key in keys(row_of(run)):
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry(key[0])
            else:
                self._compare(entry.level, entry.runs[-1], run)
            entry.runs.append(run)
            del entry.runs[:-RUNS_PER_KEY]
            entry.learned += 1
            entry.made.clear()
        self.runs_learned += 1
        if len(self._entries) > self._most_keys:
            self._shrink()

    def _shrink(self) -> None:
        """Drop the tenth of the keys whose newest run is oldest, so that this is seldom to be done."""
        newest = sorted(entry.runs[-1].end for entry in self._entries.values())
        self.forget(newest[len(newest) // 10 + 1])

    def forget(self, before: float) -> None:
        """Drop keys whose newest run ended before a Unix second."""
        self._paths.clear()
        self._entries = {key: entry for key, entry in self._entries.items() if entry.runs[-1].end >= before}

    def forecast(self, job: Job, *, own_only: bool = False) -> Forecast | None:
        """Return what is known of such a job, None if nothing; with `own_only` from its user's runs alone."""
        row = row_of(job)
        if not own_only:
            return self.forecast_of(row)
        path = tuple(entry for entry in self._path(row) if "user" in LEVELS[entry.level].needs)
        return self._walk(path) if path else None

    def forecast_of(self, row: Row) -> Forecast | None:
        """Return the forecast for a job given as `levels.row_of` gives it."""
        path = self._path(row)
        found = self._paths.get(path)
        if found is None and path:
            if len(self._paths) >= _MOST_PATHS:
                self._paths.clear()
            found = self._paths[path] = self._walk(path)
        return found

    def _path(self, row: Row) -> tuple[_Entry, ...]:
        """Return what is remembered of the job's keys, the most general first."""
        get = self._entries.get
        return tuple([entry for key in keys(row) if (entry := get(key)) is not None])

    def _walk(self, path: tuple[_Entry, ...]) -> Forecast:
        """Go from the most general entry to the most specific."""
        found: Forecast | None = None
        for entry, following in pairwise(path):
            if not entry.knows_no_more_than(following):
                found = entry.made.get(found) or self._make(entry, found)
        return path[-1].made.get(found) or self._make(path[-1], found)

    def _make(self, entry: _Entry, behind: Forecast | None) -> Forecast:
        if len(entry.made) >= _MADE_PER_KEY:
            entry.made.clear()
        seconds, watts = self._surprises[entry.level]
        made = _made(entry.level, entry.runs, behind, seconds.factors, watts.factors)
        entry.made[behind] = made
        return made

    def _compare(self, level: int, before: Run, after: Run) -> None:
        by_limit = LEVELS[level].by_limit
        seconds, watts = self._surprises[level]
        if before.ending.by_itself and after.ending.by_itself:
            seconds.note(
                before.duration_s / _scale(before, by_limit), after.duration_s / _scale(after, by_limit)
            )
        watts.note(_watts(before) or 0.0, _watts(after) or 0.0)


def _made(
    level: int,
    runs: Sequence[Run],
    behind: Forecast | None,
    second_factors: Sequence[float],
    watt_factors: Sequence[float],
) -> Forecast:
    newest_first = list(reversed(runs))
    by_limit = LEVELS[level].by_limit
    limited = newest_first[0].time_limit_s is not None
    seconds: list[Observation] = []
    joules: list[Observation] = []
    watts: list[Observation] = []
    for age, run in enumerate(newest_first):
        weight, cut, scale = _KEPT_WEIGHT**age, not run.ending.by_itself, _scale(run, by_limit)
        seconds.append((run.duration_s / scale, weight, cut))
        drawn = _watts(run)
        if drawn is not None:
            watts.append((drawn, weight, False))
            joules.append((drawn * run.duration_s / scale, weight, cut))
    # What is behind may count in shares of the limit: read with the newest limit.
    back = _scale(newest_first[0], True) if behind and behind.by_limit and not by_limit else 1.0
    prior = behind.seconds if behind else EVEN if by_limit and limited else None
    more = (behind.watts, behind.joules) if behind else (None, None)
    weight = LEVELS[level].general_weight
    return Forecast(
        level=level,
        seconds=_grid(seconds, prior and times(prior, back), weight, second_factors),
        watts=_grid(watts, more[0], weight, watt_factors) if watts else more[0],
        joules=_grid(joules, more[1] and times(more[1], back), weight, second_factors)
        if joules
        else more[1] and times(more[1], back),
        runs=len(runs),
        newest=max(run.end for run in runs),
        endings=Counter(run.ending for run in runs),
        by_limit=by_limit and limited,
    )


def _grid(
    seen: Sequence[Observation], general: Grid | None, general_weight: float, factors: Sequence[float]
) -> Grid:
    """Mix what was seen, what differs from it as runs differ, and what more general keys say.

    The first run of a key counts only as the middle of what is likely: that it repeats exactly is not known.
    """
    total = sum(weight for _, weight, _ in seen)
    alike = max(0.0, total - 1) / total
    newest = seen[:_SPREAD_RUNS]
    share = _SPREAD_WEIGHT / sum(weight for _, weight, _ in newest) / len(factors)
    points = [(value, weight * alike, cut) for value, weight, cut in seen]
    points += [
        (value * (1.0 if cut else factor), weight * share, cut)
        for value, weight, cut in newest
        for factor in factors
    ]
    if general is None:
        general = spread(mixed(seen), factors)
    return mixed(points, general, general_weight)


def _scale(run: Run, by_limit: bool) -> float:
    return (run.time_limit_s or 1.0) if by_limit else 1.0


def _watts(run: Run) -> float | None:
    """Return mean watts per unit; None if not known, as of a run too short for any sample, or no figure."""
    if run.energy_joules is None or run.duration_s <= 0:
        return None
    watts = run.energy_joules / run.duration_s / units(run)
    return watts if watts <= _MOST_WATTS else None
