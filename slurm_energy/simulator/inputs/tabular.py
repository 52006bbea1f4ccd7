"""Readers of CSV files, and of documents that sacct and `senergy acct` print.

Each line of a CSV file is one shape of a job, that is, one way to run it.
"""

from __future__ import annotations

import json
import operator
import sys
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.simulator.inputs import sacct_rows, senergy_acct
from slurm_energy.simulator.inputs.csv_records import Record, delimiter_of, records
from slurm_energy.simulator.inputs.input_problems import InputProblems
from slurm_energy.simulator.inputs.line_reader import document as document_of
from slurm_energy.simulator.inputs.line_reader import text_lines
from slurm_energy.simulator.inputs.workload_rows import NEEDED_COLUMNS, Line, WorkloadRows

NUMBERS = (
    *("submit_s", "time_s", "units", "time_limit_s", "deadline_s", "slack_s", "checkpointable"),
    *("power_watts", "batch", "unit_memory_gib"),
)
TEXTS = (
    *("job_id", "user", "hardware", "name", "partition", "account", "qos", "state"),
    *("reservation", "licenses"),
)
_WORDS = tuple(name for name in TEXTS if name != "job_id")
_BLOCK_ROWS = 1 << 16
_MAX_TEXT = 256
"""Length to which names of jobs and users are cut."""
_NO_JSON = "is not the JSON of sacct or of senergy acct"


def read_csv(path: Path, problems: InputProblems, renamed: Mapping[str, str], units: str) -> WorkloadRows:
    """Read a CSV file with a header line, or a table that `sacct -P` printed.

    The columns of `sacct -P` are separated by `|` and have sacct's names.

    Args:
        path: the file.
        problems: record to which skipped lines are added.
        renamed: maps column names of `WorkloadRows` to column names in the file.
        units: unit of job sizes in sacct output: `nodes`, `cpus` or `gpus`. Ignored for other CSV files.

    Raises:
        UsageError: the file is empty, has an unknown column, or lacks a required column.
    """
    lines = text_lines(path, problems)
    head = next(((number, text) for number, text in lines if text.strip()), None)
    if head is None:
        raise UsageError(f"{path}", "is empty", "the first line must name the columns")
    delimiter = delimiter_of(head[1])
    is_sacct = delimiter == "|"
    header = next(records(iter([head]), delimiter, problems, quotes=not is_sacct), (0, [""]))[1]
    names = [name.strip() for name in header]
    where = f"{path}:{head[0]}"
    _refuse_repeated(names, where)
    rows = records(lines, delimiter, problems, quotes=not is_sacct)
    if is_sacct:
        return _rows(sacct_rows.lines_of_text(rows, names, where, units), problems, several_shapes=False)
    columns = _file_columns(names, renamed, where)
    return _rows(_csv_lines(rows, names, columns), problems, several_shapes=True)


def _csv_lines(rows: Iterator[Record], names: list[str], columns: Mapping[str, str]) -> Iterator[Line]:
    """Yield the values of each record by column name of `WorkloadRows`.

    A record with a wrong number of fields yields only the value None for `submit_s`, so that the record is
    reported as unreadable.
    """
    indices = {own: names.index(name) for own, name in columns.items()}
    for number, fields in rows:
        whole = len(fields) == len(names)
        yield number, {own: fields[i] for own, i in indices.items()} if whole else {"submit_s": None}


def read_json(path: Path, problems: InputProblems, units: str) -> WorkloadRows:
    """Read the output of `sacct --json` (Slurm 22.05 and later) or `senergy acct --json`.

    The reader recognises from the contents which of the two programs printed the document. A job with an
    unexpected structure is skipped. The line number of a job is its position in the document, counted from 1.

    Raises:
        UsageError: the document is the output of neither program.
    """
    try:
        document = json.loads(document_of(path))
        jobs = document["jobs"]
        ours = senergy_acct.is_ours(document)
        if not isinstance(jobs, list):
            raise TypeError("jobs is not a list")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path}", f"{_NO_JSON}: {shown(str(error))}") from None
    read_job = senergy_acct.line if ours else sacct_rows.values_of_json
    lines: list[Line] = []
    fault = ""
    for number, job in enumerate(jobs, 1):
        try:
            lines.append((number, read_job(job, units)))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            fault = fault or shown(str(error))
            problems.skip("the job is not as sacct or senergy acct print it", [number])
    if fault and not lines:
        raise UsageError(f"{path}", f"{_NO_JSON}: {fault}")
    return _rows(lines, problems, several_shapes=False)


def _file_columns(names: list[str], renamed: Mapping[str, str], where: str) -> dict[str, str]:
    """Map column names of `WorkloadRows` to the column names in the file.

    Args:
        names: column names in the header of the file.
        renamed: mapping that the user has given for columns with other names.
        where: file and line of the header, for error messages.
    """
    columns = (*NUMBERS, *TEXTS)
    for own, name in renamed.items():
        if own not in columns:
            raise UsageError(f"column '{shown(own)}' is not known", todo=f"one of {', '.join(columns)}")
        if name not in names:
            raise UsageError(f"{where}: there is no column '{shown(name)}'", f"it has {', '.join(names)}")
    renamed_names = set(renamed.values())
    for name in names:
        if name not in columns and name not in renamed_names and not renamed:
            near = get_close_matches(name, columns, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(columns)}"
            raise UsageError(f"{where}: column '{shown(name)}' is not known", todo=hint)
    result = {own: renamed.get(own, own) for own in columns if renamed.get(own, own) in names}
    missing = [name for name in NEEDED_COLUMNS if name not in result]
    if missing:
        raise UsageError(f"{where}: column '{missing[0]}' is missing", f"it has {', '.join(names)}")
    return result


def _refuse_repeated(names: list[str], where: str) -> None:
    """Raise an error if a header contains a column name twice.

    The choice of one of the columns would be a guess.
    """
    repeated = [name for name in names if name and names.count(name) > 1]
    if repeated:
        raise UsageError(f"{where}: column '{shown(repeated[0])}' occurs twice", todo="remove one")


def _rows(lines: Iterable[Line], problems: InputProblems, *, several_shapes: bool) -> WorkloadRows:
    """Return workload rows for the lines of a file. Lines with unreadable values are skipped.

    Args:
        lines: values of each line.
        problems: record to which skipped lines are added.
        several_shapes: whether adjacent lines with the same job id, user and time of submission are shapes
            (alternative ways to run) of one job.
    """
    parts: list[_RowBlock] = []
    block = _RowBlock()
    for line, row in lines:
        problem = _unreadable(row)
        if problem:
            problems.skip(problem, [line])
            continue
        block.add(line, row)
        if len(block.numbers) == _BLOCK_ROWS:
            problems.add_rows(_BLOCK_ROWS)
            parts.append(block.packed())
            block = _RowBlock()
    problems.add_rows(len(block.numbers))
    parts.append(block.packed())
    table = np.concatenate([part.table for part in parts])
    columns: dict[str, Any] = {name: table[:, index] for index, name in enumerate(NUMBERS)}
    words: dict[str, Any] = {name: [text for part in parts for text in part.words[name]] for name in _WORDS}
    identity = np.concatenate([part.identity for part in parts])
    rows = np.arange(len(identity))
    if several_shapes and len(rows):
        submit_s, users = columns["submit_s"], words["user"]
        same = (identity[1:] == identity[:-1]) & (identity[1:] != -1) & (submit_s[1:] == submit_s[:-1])
        same &= np.fromiter(map(operator.eq, users[1:], users), np.bool_, len(same))
        rows = np.cumsum(np.concatenate([[0], ~same]))
    line_numbers = np.concatenate([np.array(part.numbers, np.int64) for part in parts])
    return WorkloadRows(line=line_numbers, job=rows, identity=identity, **words, **columns)


class _RowBlock:
    """Rows of one part of an input file, stored in little memory.

    The method `packed` reduces the memory of the rows to a fifth.
    """

    def __init__(self) -> None:
        self.numbers: Any = []
        self._values: list[list[float]] = []
        self._texts: list[list[str]] = []

    def add(self, line: int, row: Mapping[str, Any]) -> None:
        """Append the values of one line of a workload file to the columns."""
        self.numbers.append(line)
        self._values.append([_number(row.get(name)) for name in NUMBERS])
        self._texts.append([str(row.get(name) or "")[:_MAX_TEXT] for name in TEXTS])

    def packed(self) -> _RowBlock:
        """Convert the rows of this block to arrays, which take less memory, and return this block.

        The arrays are the columns `table`, `words` and `identity`.
        """
        self.numbers = np.array(self.numbers, np.int64)
        self.table = np.array(self._values, np.float64).reshape(-1, len(NUMBERS))
        texts = {name: [row[index] for row in self._texts] for index, name in enumerate(TEXTS)}
        texts["state"] = [state.partition(" ")[0].upper() for state in texts["state"]]
        self.identity = np.array([_identity(name) for name in texts["job_id"]], np.int64)
        self.words = {name: [sys.intern(text) for text in texts[name]] for name in _WORDS}
        self._values, self._texts = [], []
        return self


def _identity(job_id: str) -> int:
    """Return a number that stands for a text job id in comparisons; -1 for an empty id."""
    if not job_id:
        return -1
    return int(job_id) if job_id.isdecimal() and len(job_id) < 18 else hash(job_id)


def _unreadable(row: Mapping[str, Any]) -> str:
    """Return the problem that makes a line's values unusable; an empty string if there is no problem."""
    if None in row.values():
        return "not as many columns as the header has"
    for name in NUMBERS:
        try:
            _number(row.get(name))
        except (ValueError, OverflowError, TypeError):
            return f"{name} is not a number"
    return ""


def _number(value: Any) -> float:
    """Return a value as a float. An empty text means unknown, and yields NaN."""
    if value in (None, "", "Unknown", "None"):
        return float("nan")
    return float(value)
