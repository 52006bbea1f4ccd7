"""Selection of jobs from workload files.

Jobs are selected by filters, by a time window, by bounds on size and time, and by sampling.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.scheduling.queue import Bools, Floats
from slurm_energy.simulator.inputs.workload_rows import WorkloadRows
from slurm_energy.simulator.scenario_schema import TraceSection

_FILTERS = {
    "users": "user",
    "accounts": "account",
    "partitions": "partition",
    "qos": "qos",
    "states": "state",
    "names": "name",
}
_BOUNDS = {"min_units": "units", "max_units": "units", "min_time_s": "time_s", "max_time_s": "time_s"}
"""Column that each bound limits."""
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


FIRST_DATE_S: Final = 5e8
"""Earlier times of submission (before 1985) are times on a clock of the file, not dates."""


def select(
    rows: WorkloadRows, section: TraceSection, seed: int, unix_start_s: float = 0.0
) -> tuple[WorkloadRows, list[str]]:
    """Select jobs of a trace by the settings of the configuration section `[trace]`.

    The result is the selected jobs and a list of remarks for the user. The list is empty if all jobs are
    selected unchanged. The settings apply in this order: filters, time window, minimum and maximum of sizes
    and times, random sample, maximum number of jobs. A job can have several rows, one for each shape (way to
    run the job). Either all rows of a job are kept, or none. With `outliers = "clip"`, a size or time
    outside its minimum and maximum is set to the nearest permitted value.

    Args:
        rows: usable rows of the trace.
        section: settings of the section `[trace]`.
        seed: seed of the simulation. This seed and `sample_seed` together determine the sample.
        unix_start_s: Unix time of time 0 on the clock of the rows.

    Raises:
        UsageError: a setting is invalid, names a column that the file lacks, or no job is left.
    """
    jobs, selection = len(rows.heads()), _Selection(rows)
    for name, column in _FILTERS.items():
        if patterns := getattr(section, name):
            selection.keep(name, _matching(name, patterns, getattr(selection.rows, column)))
    selection.keep_window(section, unix_start_s)
    for name, column in _BOUNDS.items():
        if bound := float(getattr(section, name)):
            selection.keep_bound(name, column, bound, drop=section.outliers == "drop")
    selection.keep_sample(section, seed)
    if not selection.counts:
        return selection.rows, []
    details = ", ".join(f"{name} {count}" for name, count in selection.counts.items())
    return selection.rows, [f"[trace] uses {len(selection.rows.heads())} of {jobs} jobs ({details})"]


@dataclass(slots=True)
class _Selection:
    """Jobs of a trace file, as selected by the settings in the section `[trace]` of a scenario.

    Each method applies one setting. A setting may remove jobs, or limit values of jobs to a permitted
    range. `rows` holds the jobs that have not been removed. `counts` holds, for each setting, the number
    of jobs that the setting removed or changed.
    """

    rows: WorkloadRows
    counts: dict[str, int] = field(default_factory=dict)

    def keep(self, name: str, kept: Bools) -> None:
        before = len(self.rows.heads())
        self.rows = self.rows.take(_of_jobs(self.rows, kept))
        if before > len(self.rows.heads()):
            self.counts[name] = before - len(self.rows.heads())
        if not self.rows.count:
            raise UsageError(f"[trace] {name}", f"no job is left of {before}")

    def keep_window(self, section: TraceSection, unix_start_s: float) -> None:
        clock = float(np.min(self.rows.submit_s)), float(np.max(self.rows.submit_s)), unix_start_s
        if section.begin:
            self.keep("begin", self.rows.submit_s >= _instant("begin", section.begin, *clock))
        if section.end:
            self.keep("end", self.rows.submit_s < _instant("end", section.end, *clock))

    def keep_bound(self, name: str, column: str, bound: float, *, drop: bool) -> None:
        values: Floats = getattr(self.rows, column)
        outside = values < bound if name.startswith("min") else values > bound
        if drop:
            self.keep(name, ~outside)
        elif np.any(outside):
            self.counts[f"{name}, clipped"] = int(np.sum(outside))
            self.rows = _clipped(self.rows, column, np.where(outside, bound, values))

    def keep_sample(self, section: TraceSection, seed: int) -> None:
        """Keep a random sample of the jobs of a trace, and limit the number of jobs.

        The sample is drawn first. If it has more jobs than the maximum number, only the jobs that were
        submitted first are kept.
        """
        heads = self.rows.heads()
        if section.sample < 1:
            draw = np.random.default_rng([section.sample_seed, seed]).random(len(heads))
            self.keep("sample", np.repeat(draw < section.sample, np.diff([*heads, self.rows.count])))
        if section.max_jobs:
            heads = self.rows.heads()
            by_time = heads[np.argsort(self.rows.submit_s[heads], kind="stable")][: section.max_jobs]
            first = np.zeros(self.rows.count, np.bool_)
            first[by_time] = True
            self.keep("max_jobs", np.repeat(first[heads], np.diff([*heads, self.rows.count])))


def _of_jobs(rows: WorkloadRows, kept: Bools) -> Bools:
    """Return a mask that selects all rows of the completely kept jobs.

    A job can have several rows in the workload. A job is completely kept if `kept` selects each of its
    rows. If `kept` selects only some rows of a job, the mask selects none of them.
    """
    heads = rows.heads()
    whole = np.logical_and.reduceat(kept, heads)
    mask: Bools = np.repeat(whole, np.diff([*heads, rows.count]))
    return mask


def _matching(name: str, patterns: Sequence[str], texts: Sequence[str]) -> Bools:
    """Return a mask of the texts that match the patterns for a column of the trace.

    A pattern with a leading `!` excludes all texts that match the rest of the pattern. Any other pattern
    includes the texts that match it. A text is in the result if at least one pattern includes it and none
    excludes it. If no pattern includes texts, all texts that are not excluded are in the result.
    """
    if not any(texts):
        raise UsageError(f"[trace] {name}", "the workload file has no such column")
    try:
        compiled = [(not p.startswith("!"), re.compile(p.removeprefix("!"))) for p in patterns]
    except re.error as error:
        raise UsageError(f"[trace] {name}", f"not a regular expression: {shown(str(error), 100)}") from None
    wanted = [pattern for includes, pattern in compiled if includes]
    unwanted = [pattern for includes, pattern in compiled if not includes]
    verdicts = {
        text: (not wanted or any(p.fullmatch(text) for p in wanted))
        and not any(p.fullmatch(text) for p in unwanted)
        for text in set(texts)
    }
    return np.array([verdicts[text] for text in texts], np.bool_)


def _instant(name: str, text: str, first_s: float, last_s: float, unix_start_s: float) -> float:
    """Convert a time in a scenario to seconds on the clock of the trace.

    The text is a date, or a duration since the first submission in the trace.

    Args:
        name: key of the text, for errors.
        text: the text.
        first_s: first submission on the clock of the trace.
        last_s: last submission on this clock.
        unix_start_s: Unix time of time 0 on this clock.
    """
    match = re.fullmatch(r"\+?(\d+(?:\.\d+)?)([smhdw]?)", text)
    if match:
        return first_s + float(match[1]) * _SECONDS[match[2] or "s"]
    try:
        unix_s = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"[trace] {name}",
            f"'{shown(text)}' is not a time",
            "e.g. 12h, 3d, 2026-01-31 or 2026-01-31T08:00",
        ) from None
    if last_s + unix_start_s < FIRST_DATE_S:
        raise UsageError(
            f"[trace] {name}",
            "is a date, but the workload files state no dates",
            "a time since the first submission, e.g. 12h or 3d",
        )
    return unix_s - unix_start_s


def _clipped(rows: WorkloadRows, column: str, values: Floats) -> WorkloadRows:
    """Return a copy of the workload in which the jobs have other sizes or other run times.

    If the sizes change, the power of each job changes in proportion.

    Args:
        rows: the workload, one row per job.
        column: column to replace: `time_s` for run times, otherwise job sizes.
        values: new values of the column.
    """
    if column == "time_s":
        return replace(rows, time_s=values)
    return replace(rows, units=values, power_watts=rows.power_watts * values / rows.units)
