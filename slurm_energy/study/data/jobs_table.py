"""Table of finished, running and pending jobs of a period, as NumPy columns. Plain data."""

from __future__ import annotations

import csv
import hashlib
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from slurm_energy.safe_text import escape_csv_reversibly

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Texts = NDArray[np.str_]

TEXTS: Final = ("job_id", "name", "user", "account", "partition", "state", "job_class", "arm")
NUMBERS: Final = (
    *("nodes", "cpus", "gpus", "submit_s", "start_s", "end_s", "time_limit_s", "energy_joules", "speed"),
)
COLUMNS: Final = (*TEXTS, *NUMBERS)
OUTAGE_STATES: Final = frozenset({"NODE_FAIL", "BOOT_FAIL"})
"""States of jobs that ended because of the hardware or an outage."""
MAX_NAME: Final = 64
"""Maximum length of the name of a job. A text column is as wide as its longest value, in every row."""
_DIGEST_LENGTH: Final = 8


@dataclass(frozen=True, slots=True)
class JobsTable:
    """Columns with one value per job, shape (n,). Unknown values are NaN or the empty text.

    Times are Unix seconds.

    Attributes:
        job_id, name, user, account, partition, state: as in sacct.
        job_class: class of the job, see `classes`; an empty value means not classified.
        arm: arm of the experiment in which the job ran, such as `control` or `treated`; an empty
            value means no arm.
        nodes, cpus, gpus: allocated resources.
        submit_s: submission.
        start_s: start; NaN means that the job has not started.
        end_s: end; NaN means that the job has not ended.
        time_limit_s: requested time limit.
        energy_joules: energy of the job on all nodes.
        speed: mean speed of the tuned job relative to the untuned job; NaN if there is no sign
            that the job was tuned.
    """

    job_id: Texts
    name: Texts
    user: Texts
    account: Texts
    partition: Texts
    state: Texts
    job_class: Texts
    arm: Texts
    nodes: Floats
    cpus: Floats
    gpus: Floats
    submit_s: Floats
    start_s: Floats
    end_s: Floats
    time_limit_s: Floats
    energy_joules: Floats
    speed: Floats

    @property
    def count(self) -> int:
        """Number of jobs."""
        return len(self.job_id)

    @property
    def run_s(self) -> Floats:
        """Run time of each job in seconds; NaN if the job has not ended or never started."""
        return self.end_s - self.start_s

    @property
    def completion_s(self) -> Floats:
        """Seconds of each job from submission to end; NaN if the job has not ended."""
        return self.end_s - self.submit_s

    @property
    def power_watts(self) -> Floats:
        """Mean power of each job, summed over its nodes; NaN means unknown."""
        return self.energy_joules / np.where(self.run_s > 0, self.run_s, np.nan)

    @property
    def work_node_hours(self) -> Floats:
        """Work of each job: node-hours at the speed of the untuned job; NaN if the job has not ended.

        A job that tuning slows down by 5 % runs 5 % longer for the same work. The factor `speed` corrects for
        this difference.
        """
        return self.nodes * self.run_s / 3600 * np.where(np.isnan(self.speed), 1.0, self.speed)

    def where(self, kept: Bools) -> JobsTable:
        """Return the jobs that a mask of shape (n,) selects."""
        return JobsTable(**{name: getattr(self, name)[kept] for name in COLUMNS})

    def with_columns(self, **columns: Sequence[Any] | NDArray[Any]) -> JobsTable:
        """Return a copy of the table in which the values of the given columns are replaced."""
        changed: dict[str, Any] = {
            name: np.asarray(values, np.str_ if name in TEXTS else np.float64)
            for name, values in columns.items()
        }
        return replace(self, **changed)


def jobs_table(**columns: Sequence[Any] | NDArray[Any]) -> JobsTable:
    """Return a table of columns of equal length.

    Values of missing columns and None in a column count as unknown. `bounded_name` shortens the names of
    jobs.

    Raises:
        ValueError: a column is unknown, or the lengths differ.
    """
    if unknown := set(columns) - set(COLUMNS):
        raise ValueError(f"unknown columns: {', '.join(sorted(unknown))}")
    count = len(next(iter(columns.values()))) if columns else 0
    made: dict[str, Any] = {}
    for name in COLUMNS:
        values = columns.get(name)
        if name in TEXTS:
            listed = [""] * count if values is None else ["" if v is None else str(v) for v in values]
            if name == "name":
                listed = [bounded_name(text) for text in listed]
            made[name] = np.array(listed, np.str_) if listed else np.zeros(0, "U1")
        elif values is None:
            made[name] = np.full(count, math.nan)
        else:
            made[name] = np.array([math.nan if v is None else v for v in values], np.float64)
        if len(made[name]) != count:
            raise ValueError(f"column {name} has {len(made[name])} values, expected {count}")
    return JobsTable(**made)


def bounded_name(name: str) -> str:
    """Return a job name of at most MAX_NAME characters.

    `~` and a digest replace the end of a longer name.
    """
    if len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
    return f"{name[: MAX_NAME - _DIGEST_LENGTH - 1]}~{digest}"


def from_rows(rows: Iterable[Mapping[str, Any]]) -> JobsTable:
    """Return a table from rows of values by column name. Missing values are unknown.

    Raises:
        ValueError: a value is no number.
    """
    listed = list(rows)
    return jobs_table(**{name: [row.get(name) for row in listed] for name in COLUMNS})


def concatenated(tables: Sequence[JobsTable]) -> JobsTable:
    """Return the jobs of several tables in one."""
    if not tables:
        return jobs_table()
    return JobsTable(
        **{spec.name: np.concatenate([getattr(t, spec.name) for t in tables]) for spec in fields(JobsTable)}
    )


def without_repeated(jobs: JobsTable) -> JobsTable:
    """Return the table with one row per run of a job. Overlapping exports can contain a run several times.

    Rows with equal job id, submission and start are the same run. The row with the latest end is kept. Among
    rows with the same end, a row with a known energy is kept. A row of a job that still waits is left out if
    another row of the same job id and submission exists. Rows without a job id are kept.
    """
    ids = np.unique(jobs.job_id, return_inverse=True)[1]
    start_s, end_s = (np.where(np.isnan(times), -np.inf, times) for times in (jobs.start_s, jobs.end_s))
    order = np.lexsort((~np.isnan(jobs.energy_joules), end_s, start_s, jobs.submit_s, ids))
    row, later = order[:-1], order[1:]
    waits = np.isneginf(start_s) & np.isneginf(end_s)
    repeated = (ids[row] == ids[later]) & (jobs.submit_s[row] == jobs.submit_s[later])
    repeated &= (start_s[row] == start_s[later]) | waits[row]
    kept = np.ones(jobs.count, np.bool_)
    kept[row[repeated]] = False
    return jobs.where(kept | (jobs.job_id == ""))


def csv_text(jobs: JobsTable) -> str:
    """Return the table as CSV with a header, as `jobs_file.read_jobs` reads it. Unknown values are empty.

    Names of jobs are escaped, so that no spreadsheet takes them for formulas.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    texts = [[escape_csv_reversibly(text) for text in getattr(jobs, name).tolist()] for name in TEXTS]
    numbers = [[_number_text(v) for v in getattr(jobs, name).tolist()] for name in NUMBERS]
    writer.writerows(zip(*texts, *numbers, strict=True))
    return buffer.getvalue()


def _number_text(value: float) -> str:
    if value != value:
        return ""
    return str(int(value)) if value.is_integer() else repr(value)
