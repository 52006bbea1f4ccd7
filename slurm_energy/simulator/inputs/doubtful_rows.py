"""Removal of doubtful jobs from the workload files of a simulation.

A job is doubtful if it is a repetition of an earlier job, or if its date is far from all other dates.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from slurm_energy.scheduling.queue import Bools, Floats, Ints
from slurm_energy.simulator.inputs.input_problems import InputProblems
from slurm_energy.simulator.inputs.workload_rows import WorkloadRows

_GAP_S: Final = 366 * 86400.0
"""Gap between two submissions beyond which one side has a wrong date."""
_FEW: Final = 0.01
"""Maximum fraction of the jobs on one side of a gap for which these jobs are skipped."""


def without_doubtful_rows(rows: WorkloadRows, problems: InputProblems, paths: Sequence[Path]) -> WorkloadRows:
    """Return the jobs read from workload files, without repeated jobs and without wrong dates.

    Each job is one row. The removed rows are recorded in `problems` as skipped.

    Args:
        rows: usable rows of all files.
        problems: record to which skipped rows are added.
        paths: paths of the files; `rows.file` has indices into this list.
    """
    repeated, renamed = _repeated(rows)
    _record(rows, repeated, "the same job as on an earlier line", problems, paths)
    _record(rows, renamed, "the job id occurs before: taken as another job", problems, paths, skipped=False)
    rows = rows.take(~repeated)
    wrong = _wrong_dates(rows.submit_s)
    text = "submitted more than a year before or after almost all other jobs: a wrong date"
    _record(rows, wrong, text, problems, paths)
    return rows.take(~wrong)


def _repeated(rows: WorkloadRows) -> tuple[Bools, Bools]:
    """Return two masks: rows equal to an earlier row, and other rows with the job id of an earlier row."""
    nothing = np.zeros(rows.count, np.bool_)
    head = rows.heads()
    named = rows.identity[head]
    named = named[named != -1]
    if len(np.unique(named)) == len(named):
        return nothing, nothing
    columns = (rows.submit_s, rows.time_s, rows.units, rows.power_watts, rows.batch, rows.deadline_s)
    texts = (_codes(rows.hardware), _codes(rows.user))
    keys = [*texts, *(np.nan_to_num(column, nan=-1.0) for column in columns), rows.identity]
    order = np.lexsort((np.arange(rows.count), *keys))
    same = rows.identity[order][1:] != -1
    for column in keys:
        same &= column[order][1:] == column[order][:-1]
    repeated = nothing.copy()
    repeated[order[1:][same]] = True
    first_of_id = np.zeros(rows.count, np.bool_)
    first_of_id[head[np.unique(rows.identity[head], return_index=True)[1]]] = True
    is_head = nothing.copy()
    is_head[head] = True
    return repeated, is_head & ~first_of_id & ~repeated & (rows.identity != -1)


def _codes(texts: Sequence[str]) -> Ints:
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)


def _wrong_dates(submit_s: Floats) -> Bools:
    """Return the mask of submit times that are more than a year away from nearly all others."""
    order = np.argsort(submit_s, kind="stable")
    breaks = np.flatnonzero(np.diff(submit_s[order]) > _GAP_S) + 1
    parts = np.split(order, breaks)
    largest = max(parts, key=len)
    wrong = np.ones(len(submit_s), np.bool_)
    wrong[largest] = False
    return wrong if np.sum(wrong) <= _FEW * len(submit_s) else np.zeros(len(submit_s), np.bool_)


def _record(
    rows: WorkloadRows,
    mask: Bools,
    text: str,
    problems: InputProblems,
    paths: Sequence[Path],
    *,
    skipped: bool = True,
) -> None:
    record = problems.skip if skipped else problems.warn
    assert rows.file is not None
    for number in np.unique(rows.file[mask]).tolist():
        problems.path = paths[number]
        record(text, (int(line) for line in rows.line[mask & (rows.file == number)]))
