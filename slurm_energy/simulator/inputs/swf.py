"""Reader of the Standard Workload Format (SWF) of the Parallel Workloads Archive.

Source: Feitelson, "The Standard Workload Format", version 2.2: 18 numbers per line, -1 for unknown, `;`
starts a comment.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from slurm_energy.scheduling.queue import Floats
from slurm_energy.simulator.inputs.input_problems import InputProblems
from slurm_energy.simulator.inputs.workload_rows import WorkloadRows

_FIELDS = 18
_LINES_AT_ONCE = 100_000
_MAX_USER = 2**53
"""First user number that counts as unknown: floats cannot distinguish numbers from here on."""
_JOB, _SUBMIT, _RUN, _ALLOCATED, _REQUESTED, _LIMIT, _USER = 0, 1, 3, 4, 7, 8, 11


def read(path: Path, problems: InputProblems) -> WorkloadRows:
    """Read an SWF file in chunks, so that only the required columns are in memory.

    A line without 18 numbers is skipped. The size of a job is its number of processors: the requested number,
    or the allocated one if that is unknown.
    """
    lines: list[np.ndarray] = []
    parts: list[Floats] = []
    for first, texts in _chunks(path):
        numbers, table = _table(first, texts, problems)
        lines.append(numbers)
        parts.append(table[:, [_JOB, _SUBMIT, _RUN, _ALLOCATED, _REQUESTED, _LIMIT, _USER]])
    table = np.concatenate(parts) if parts else np.zeros((0, 7))
    job, submit_s, run_s, allocated, requested, limit_s, user = table.T
    count = len(job)
    return WorkloadRows(
        line=np.concatenate(lines) if lines else np.zeros(0, np.int64),
        job=list(range(count)),
        submit_s=submit_s,
        time_s=np.where(run_s == -1, np.nan, run_s),
        units=np.where(requested > 0, requested, allocated),
        time_limit_s=np.where(limit_s > 0, limit_s, np.nan),
        deadline_s=np.full(count, np.nan),
        power_watts=np.full(count, np.nan),
        hardware=[""] * count,
        user=_names(user),
        batch=np.full(count, np.nan),
    )


def _names(numbers: Floats) -> list[str]:
    """Return user numbers as names.

    An unknown user has an empty name. Equal names share one string object.
    """
    distinct, rows = np.unique(numbers, return_inverse=True)
    names = [str(int(number)) if 0 <= number < _MAX_USER else "" for number in distinct.tolist()]
    return [names[row] for row in rows]


def _chunks(path: Path) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the lines of the file in chunks, each chunk with the line number of its first line."""
    with path.open("rb") as file:
        number = 1
        if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
            file.seek(0)
        while texts := file.readlines(_LINES_AT_ONCE * 80):
            yield number, texts
            number += len(texts)


def _table(first: int, texts: list[bytes], problems: InputProblems) -> tuple[np.ndarray, Floats]:
    """Return the line numbers and the values of those lines of a chunk that describe jobs.

    Args:
        first: line number of the first line.
        texts: the lines.
        problems: records the lines that are skipped.

    Returns:
        Line numbers, shape (r,), and the 18 values of each line, shape (r, 18).
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
