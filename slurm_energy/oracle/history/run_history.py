"""The history of finished runs in memory, and forecasts of new jobs from these runs.

Similar runs have the same similarity key. Only the newest runs of each key are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from slurm_energy.oracle.history.cap_response import Caps
from slurm_energy.oracle.history.forecast import Forecast, make_forecast, run_scale, watts_of
from slurm_energy.oracle.history.observed_run import ObservedRun
from slurm_energy.oracle.history.run_variability import RunVariability
from slurm_energy.oracle.history.similarity import (
    LEVELS,
    USER_LEVEL,
    Job,
    Key,
    Row,
    caps_of_row,
    keys,
    row_of,
    user_of,
)
from slurm_energy.oracle.history.track_record import PartitionRecord, ProgramRecord, UserRecord
from slurm_energy.user_quota import fair_quota

RUNS_PER_KEY: Final = 64
"""Number of newest runs stored per key. An older run would have less than 1 % of the newest run's weight."""

RUNS_PER_USER: Final = RUNS_PER_KEY // 4
"""Number of newest runs stored per user in a key that several users share."""

MAX_KEYS: Final = 200_000

_FORECASTS_PER_KEY: Final = 16
_MAX_PATHS: Final = 200_000
_SHRINK_TO: Final = 0.9


@dataclass(slots=True, eq=False)
class _Entry:
    """Stored runs of one group of similar jobs, and the forecasts made from these runs.

    The jobs of a group have the same similarity key, that is, the same values of some attributes.

    Attributes:
        level: index of the similarity level of the group in `LEVELS`.
        runs: stored runs, oldest first.
        run_count: number of runs ever added, including those that are no longer stored.
        forecasts: cached forecasts. A forecast depends on the forecast of the more general group and on
            the job's power caps. Both together are the key in this dictionary.
        record: weighted sums over all runs of the group; None if the group contains runs of different
            programs.
    """

    level: int
    runs: list[ObservedRun] = field(default_factory=list)  # a deque would take 0.6 kB for a single run
    run_count: int = 0
    forecasts: dict[tuple[Forecast | None, Caps], Forecast] = field(default_factory=dict)
    record: ProgramRecord | None = None

    def add(self, run: ObservedRun) -> None:
        """Add a run to the runs of a similarity key, and drop old runs.

        If more than `RUNS_PER_KEY` runs are stored, the oldest run is dropped. If several users share the
        key, at most `RUNS_PER_USER` runs of each user are stored. If the user of `run` exceeds this number,
        the oldest run of this user is dropped.
        """
        self.runs.append(run)
        if self.level > USER_LEVEL:
            own_runs = [index for index, other in enumerate(self.runs) if other.user == run.user]
            if len(own_runs) > RUNS_PER_USER:
                del self.runs[own_runs[0]]
        del self.runs[:-RUNS_PER_KEY]
        self.run_count += 1
        self.forecasts.clear()
        if self.record is not None:
            self.record.add(run)

    def has_the_runs_of(self, other: _Entry) -> bool:
        """Return whether this entry of the run history has the same runs as a more specific entry.

        An entry contains similar runs, for example all runs of a user. If the two entries have the same runs,
        the caller skips this entry, because its runs would count twice in a forecast.
        """
        return self.run_count == other.run_count and self.runs[-1] is other.runs[-1]


class History:
    """A history of runs in memory, from which the time and energy of new jobs are forecast.

    The runs are grouped by similarity keys. A similarity key stands for runs that are alike, for example of
    the same user and job name. The class is not thread-safe.

    Args:
        max_keys: maximum number of similarity keys. The maximum bounds the memory, because a key and its
            runs need about 1 kB. If every job has its own name, there are several keys per run. Above the
            maximum, the oldest keys of the users with the most keys are dropped. Therefore no user can
            displace the history of other users.
    """

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._entries: dict[Key, _Entry] = {}
        self._variability = [(RunVariability(), RunVariability()) for _ in LEVELS]
        self._paths: dict[tuple[tuple[_Entry, ...], Caps], Forecast] = {}
        self._users: dict[str, UserRecord] = {}
        self._partitions: dict[tuple[str, bool], PartitionRecord] = {}
        self.runs_learned = 0

    def __len__(self) -> int:
        """Return the number of similarity keys for which the history in memory holds runs."""
        return len(self._entries)

    def learn(self, run: ObservedRun) -> None:
        """Add a finished run to all groups of similar runs to which it belongs.

        A similarity key identifies a group of similar runs, for example the runs of one program. Runs are
        expected in the order in which they ended. Minor deviations from this order are harmless.
        """
        self._paths.clear()
        for key in keys(row_of(run)):
            entry = self._entries.get(key)
            if entry is None:
                record = ProgramRecord() if key[0] < USER_LEVEL else None
                entry = self._entries[key] = _Entry(key[0], record=record)
            else:
                self._compare(entry.level, entry.runs[-1], run)
            entry.add(run)
        if run.user is not None:
            self._users.setdefault(run.user, UserRecord()).add(run)
        if run.partition is not None:
            partition = self._partitions.setdefault((run.partition, bool(run.gpus)), PartitionRecord())
            partition.add(run)
        self.runs_learned += 1
        if len(self._entries) > self._max_keys:
            self._shrink()

    def _shrink(self) -> None:
        """Drop the oldest similarity keys (groups of similar runs) of the users with the most keys.

        The number of keys falls to 90 % of the maximum, so this method rarely runs.
        """
        self._paths.clear()
        counts = Counter(user_of(key) for key in self._entries)
        quota_left = dict.fromkeys(counts, fair_quota(counts.values(), int(_SHRINK_TO * self._max_keys)))
        kept: dict[Key, _Entry] = {}
        for key, entry in sorted(self._entries.items(), key=lambda item: -item[1].runs[-1].end):
            if quota_left[user_of(key)] > 0:
                quota_left[user_of(key)] -= 1
                kept[key] = entry
        self._entries = kept

    def forget(self, before: float) -> None:
        """Remove old data from the history of runs in memory.

        Users whose newest run ended before `before` (Unix seconds) are removed. The same applies to groups
        of similar jobs (similarity keys).
        """
        self._paths.clear()
        self._entries = {key: entry for key, entry in self._entries.items() if entry.runs[-1].end >= before}
        self._users = {user: record for user, record in self._users.items() if record.newest >= before}
        for partition in self._partitions.values():
            partition.forget(before)

    def user_record(self, user: str | None) -> UserRecord | None:
        """Return sums over all finished runs of a user, weighted by the resources that the runs used.

        Return None if no run of the user is known.
        """
        return None if user is None else self._users.get(user)

    def partition_record(self, partition: str | None, *, on_gpus: bool) -> PartitionRecord | None:
        """Return the history of all runs in a Slurm partition; None if no such run is known.

        The history consists of weighted sums of run times, powers and used fractions of time limits.

        Args:
            partition: name of the partition; None means unknown.
            on_gpus: True selects the runs with GPUs, False the runs without GPUs.
        """
        return None if partition is None else self._partitions.get((partition, on_gpus))

    def program_records(self, row: Row) -> Iterator[ProgramRecord]:
        """Yield summaries of earlier runs that are similar to the job, from general to specific.

        Each summary (record) covers the runs with one similarity key. A similarity key is a set of
        attributes that runs have in common. The most general key comes first.

        Args:
            row: attributes of the job, from `similarity.row_of`.
        """
        for entry in self._path(row):
            if entry.record is not None:
                yield entry.record

    def forecast(self, job: Job, *, own_only: bool = False) -> Forecast | None:
        """Return the forecast for a job, or None if no run is similar to the job.

        Args:
            job: the job to predict.
            own_only: whether only runs of the job's own user are used.
        """
        row = row_of(job)
        if not own_only:
            return self.forecast_of(row)
        path = tuple(entry for entry in self._path(row) if "user" in LEVELS[entry.level].required)
        return self._walk(path, caps_of_row(row)) if path else None

    def forecast_of(self, row: Row) -> Forecast | None:
        """Return the forecast for a job from similar earlier runs.

        Return None if no run is similar to the job.

        Args:
            row: attributes of the job in the order of `similarity.ATTRIBUTES`.
        """
        path, caps = self._path(row), caps_of_row(row)
        forecast = self._paths.get((path, caps))
        if forecast is None and path:
            if len(self._paths) >= _MAX_PATHS:
                self._paths.clear()
            forecast = self._paths[path, caps] = self._walk(path, caps)
        return forecast

    def _path(self, row: Row) -> tuple[_Entry, ...]:
        """Return the stored entries of the run history that are similar to a job.

        An entry belongs to a similarity key (attributes that a group of runs has in common). The entry of
        the most general key comes first.
        """
        get = self._entries.get
        return tuple([entry for key in keys(row) if (entry := get(key)) is not None])

    def _walk(self, path: tuple[_Entry, ...], caps: Caps) -> Forecast:
        """Return the forecast of a job from groups of similar earlier runs.

        The result is based on the most specific group. The forecasts of the more general groups contribute
        to it.

        Args:
            path: groups of runs that are similar to the job, the most general first. There must be at least
                one.
            caps: power caps of the job.
        """
        forecast: Forecast | None = None
        for entry, following in pairwise(path):
            if not entry.has_the_runs_of(following):
                forecast = self._forecast_for(entry, forecast, caps)
        return self._forecast_for(path[-1], forecast, caps)

    def _forecast_for(self, entry: _Entry, general: Forecast | None, caps: Caps) -> Forecast:
        cached = entry.forecasts.get((general, caps))
        if cached is not None:
            return cached
        if len(entry.forecasts) >= _FORECASTS_PER_KEY:
            entry.forecasts.clear()
        seconds, watts = self._variability[entry.level]
        forecast = make_forecast(entry.level, entry.runs, general, caps, seconds.factors, watts.factors)
        entry.forecasts[general, caps] = forecast
        return forecast

    def _compare(self, level: int, before: ObservedRun, after: ObservedRun) -> None:
        by_limit = LEVELS[level].by_limit
        seconds, watts = self._variability[level]
        if before.ending.by_itself and after.ending.by_itself:
            seconds.add(
                before.duration_s / run_scale(before, by_limit),
                after.duration_s / run_scale(after, by_limit),
                after.user,
            )
        watts.add(watts_of(before) or 0.0, watts_of(after) or 0.0, after.user)
