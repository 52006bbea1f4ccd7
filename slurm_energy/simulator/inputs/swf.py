"""Reader of the Standard Workload Format (SWF) of the Parallel Workloads Archive.

Each line has 18 numbers; -1 stands for an unknown number, and `;` starts a comment. Source: Feitelson, "The
Standard Workload Format", version 2.2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from slurm_energy.scheduling.queue import Bools, Floats
from slurm_energy.simulator.inputs.input_problems import InputProblems
from slurm_energy.simulator.inputs.line_reader import line_blocks
from slurm_energy.simulator.inputs.workload_rows import WorkloadRows

_FIELDS = 18
_MAX_NUMBER = 2**53
"""First number of a user or a job that counts as unknown: floats cannot distinguish numbers from here on."""
_COLUMNS = (0, 1, 3, 4, 7, 8, 9, 10, 11, 14, 15)
"""Fields that are read: job, submission, run time, allocated and requested processors, requested time,
requested memory (KiB per processor), status, user, queue, partition."""
_KIB_PER_GIB = 2.0**20
_STATES = {0: "FAILED", 1: "COMPLETED", 5: "CANCELLED"}
_JOB, _STATUS = _COLUMNS.index(0), _COLUMNS.index(10)
_UNIX_START = re.compile(rb"\s*;\s*UnixStartTime\s*:\s*(\d{1,11})\s*", re.IGNORECASE)
_PART_STATUSES = (2, 3, 4)
"""Statuses of the parts of a job that was swapped out: continued later, last part, last part and failed."""


def read(path: Path, problems: InputProblems) -> WorkloadRows:
    """Read an SWF file in blocks, so that only the required columns are in memory.

    A line without 18 numbers is skipped. The size of a job is the requested number of processors. If this
    number is unknown, the size is the allocated number. The parts of a job that was swapped out are skipped
    if another line sums them up, as the standard says for workloads.
    """
    lines: list[np.ndarray] = []
    parts: list[Floats] = []
    for first, texts in line_blocks(path, problems):
        numbers, table = _table(first, texts, problems)
        problems.add_rows(len(numbers))
        lines.append(numbers)
        parts.append(table[:, _COLUMNS])
    table = np.concatenate(parts) if parts else np.zeros((0, len(_COLUMNS)))
    line = np.concatenate(lines) if lines else np.zeros(0, np.int64)
    repeated = _parts_of_summed_jobs(table[:, _JOB], table[:, _STATUS])
    problems.skip("a part of a job that another line sums up", line[repeated].tolist())
    table, line = table[~repeated], line[~repeated]
    job, submit_s, run_s, allocated, requested, limit_s, memory_kib, status, user, queue, partition = table.T
    count = len(job)
    return WorkloadRows(
        line=line,
        job=np.arange(count),
        identity=np.where((job >= 0) & (job < _MAX_NUMBER), job, -1).astype(np.int64),
        submit_s=np.where(submit_s == -1, np.nan, submit_s),
        time_s=np.where(run_s == -1, np.nan, run_s),
        units=np.where(requested > 0, requested, allocated),
        time_limit_s=np.where(limit_s > 0, limit_s, np.nan),
        deadline_s=np.full(count, np.nan),
        slack_s=np.full(count, np.nan),
        checkpointable=np.full(count, np.nan),
        power_watts=np.full(count, np.nan),
        hardware=[""] * count,
        user=_names(user),
        batch=np.full(count, np.nan),
        unit_memory_gib=np.where(memory_kib > 0, memory_kib / _KIB_PER_GIB, np.nan),
        state=_names(status, _STATES),
        partition=_names(np.where(partition >= 0, partition, queue)),
    )


def unix_start_s(path: Path) -> float:
    """Return the Unix time of the time 0 in an SWF file; 0 if the header of the file does not state it."""
    for _, texts in line_blocks(path, InputProblems(path)):
        for text in texts:
            if match := _UNIX_START.fullmatch(text):
                return float(match[1])
            if text.strip() and not text.lstrip().startswith(b";"):
                return 0.0
    return 0.0


def _parts_of_summed_jobs(job: Floats, status: Floats) -> Bools:
    """Return a mask of the lines that describe a part of a job that another line describes as a whole."""
    parts: Bools = np.isin(status, _PART_STATUSES)
    if np.any(parts):
        parts &= (job >= 0) & np.isin(job, job[~parts])
    return parts


def _names(numbers: Floats, names: Mapping[int, str] | None = None) -> list[str]:
    """Return numbers as names. The mapping `names` gives other names to some of the numbers.

    The name of an unknown number is empty. Equal names share one string object.
    """
    distinct, rows = np.unique(numbers, return_inverse=True)
    texts = [str(int(number)) if 0 <= number < _MAX_NUMBER else "" for number in distinct.tolist()]
    if names is not None:
        texts = [names.get(int(text), "") if text else "" for text in texts]
    return [texts[row] for row in rows]


def _table(first: int, texts: list[bytes], problems: InputProblems) -> tuple[np.ndarray, Floats]:
    """Parse a block of lines of an SWF file. Comments and invalid lines are skipped.

    Args:
        first: line number of the first line.
        texts: text of each line.
        problems: record to which invalid lines are added.

    Returns:
        The line numbers of the lines that describe jobs, shape (r,), and the 18 values of each such line,
        shape (r, 18).
    """
    numbered = [
        (number, words)
        for number, text in enumerate(texts, first)
        if not text.lstrip().startswith(b";") and (words := text.split())
    ]
    short = [number for number, words in numbered if len(words) != _FIELDS]
    problems.skip(f"not {_FIELDS} numbers", short)
    whole = [(number, words) for number, words in numbered if len(words) == _FIELDS]
    try:
        table = np.array([words for _, words in whole], np.float64).reshape(-1, _FIELDS)
    except ValueError:
        readable = [(number, values) for number, words in whole if (values := _numbers(words)) is not None]
        parsed = {number for number, _ in readable}
        problems.skip("not all words are numbers", [n for n, _ in whole if n not in parsed])
        whole = [(number, []) for number, _ in readable]
        table = np.array([values for _, values in readable], np.float64).reshape(-1, _FIELDS)
    return np.array([number for number, _ in whole], np.int64), table


def _numbers(words: list[bytes]) -> list[float] | None:
    try:
        return [float(word) for word in words]
    except ValueError:
        return None
