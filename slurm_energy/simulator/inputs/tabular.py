"""Readers of CSV files, and of tables that sacct and `senergy acct` print.

Each line of a CSV file is one shape of a job, that is, one way to run it.
"""

from __future__ import annotations

import json
import operator
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.simulator.inputs import senergy_acct
from slurm_energy.simulator.inputs.csv_records import Record, delimiter_of, records
from slurm_energy.simulator.inputs.input_problems import InputProblems
from slurm_energy.simulator.inputs.line_reader import document as document_of
from slurm_energy.simulator.inputs.line_reader import text_lines
from slurm_energy.simulator.inputs.workload_rows import Line, WorkloadRows

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
_NEEDED = ("submit_s", "time_s", "units")
_MAX_TEXT = 256
"""Length to which names of jobs and users are cut."""
_SUFFIXES = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_GPUS = re.compile(r"(?:^|,)gres/gpu=(\d+)")
_LICENSES = re.compile(r"(?:^|,)license/([^=,]+)=(\d+)")
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)([KMGTkmgt])")
_MEMORY_GIB = {"K": 2.0**-20, "M": 2.0**-10, "G": 1.0, "T": 2.0**10}
_NO_JSON = "is not the JSON of sacct or of senergy acct"
_DURATION = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_SACCT = {
    "JobIDRaw": "job_id",
    "JobID": "job_id",
    "JobName": "name",
    "User": "user",
    "Submit": "submit_s",
    "Elapsed": "time_s",
    "ElapsedRaw": "time_s",
    "Timelimit": "time_limit_s",
    "TimelimitRaw": "limit_minutes",
    "NNodes": "units",
    "AllocNodes": "units",
    "ConsumedEnergy": "energy_joules",
    "ConsumedEnergyRaw": "energy_joules",
    "Partition": "partition",
    "Account": "account",
    "QOS": "qos",
    "State": "state",
    "Reservation": "reservation",
    "ReqMem": "memory",
    "ReqTRES": "tres",
}


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
        return _rows(_sacct_lines(rows, names, where, units), problems, several_shapes=False)
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
    lines: list[Line] = []
    fault = ""
    for number, job in enumerate(jobs, 1):
        try:
            lines.append((number, senergy_acct.line(job, units) if ours else _from_json(job, units)))
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
    missing = [name for name in _NEEDED if name not in result]
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


def _sacct_lines(rows: Iterator[Record], names: list[str], where: str, units: str) -> Iterator[Line]:
    """Yield the jobs in the parsable output of sacct.

    Job steps are skipped, because the line of a job already includes its steps. Steps are recognised by the
    dot in their job id, so output without a job id must not contain steps (`sacct -X`).
    """
    sizes = {"cpus": ("AllocCPUS", "NCPUS"), "gpus": ("AllocTRES", "ReqTRES")}.get(units)
    columns = _SACCT if sizes is None else {k: v for k, v in _SACCT.items() if v != "units"}
    columns = {**columns, **dict.fromkeys(sizes or (), "units")}
    present = {own: names.index(name) for name, own in columns.items() if name in names}
    missing = [name for name in _NEEDED if name not in present]
    if missing:
        raise UsageError(
            f"{where}: no column for {missing[0]}",
            f"it has {shown(', '.join(names), 200)}",
            "sacct -P -X -o JobIDRaw,User,Submit,ElapsedRaw,TimelimitRaw,NNodes,AllocCPUS,ConsumedEnergyRaw",
        )
    readers: dict[str, Callable[[str], Any]] = {
        "submit_s": _unix_seconds,
        "time_s": _duration,
        "time_limit_s": _duration,
        "units": _gpus if units == "gpus" else _scaled,
        "energy_joules": _scaled,
    }
    for number, fields in rows:
        if len(fields) != len(names):
            yield number, {"submit_s": None}
            continue
        if "job_id" in present and "." in fields[present["job_id"]]:
            continue
        yield (
            number,
            _converted({own: readers.get(own, str)(fields[i].strip()) for own, i in present.items()}),
        )


def _scaled(text: str) -> str:
    """Return a number of sacct such as `1.50K` with its suffix resolved. Return other text unchanged."""
    factor = _SUFFIXES.get(text[-1:].upper())
    try:
        return text if factor is None else str(float(text[:-1]) * factor)
    except ValueError:
        return text


def _gpus(text: str) -> str:
    """Return the number of GPUs in a TRES text such as `cpu=4,gres/gpu=2`; 0 if the text has no GPU."""
    match = _GPUS.search(text)
    return match[1] if match else "0"


def _converted(values: dict[str, Any]) -> dict[str, Any]:
    """Convert values that sacct prints to the quantities and units of `WorkloadRows`.

    For example, the time limit is converted to seconds, and the energy to mean power.
    """
    minutes = values.pop("limit_minutes", "")
    if minutes and str(minutes).isdecimal():
        values["time_limit_s"] = 60.0 * float(minutes)
    licenses = [f"{name}:{count}" for name, count in _LICENSES.findall(str(values.pop("tres", "")))]
    if licenses:
        values["licenses"] = ",".join(licenses)
    gib = _gib(str(values.pop("memory", "")))
    try:
        if gib is not None:
            values["unit_memory_gib"] = gib / float(values.get("units") or "nan")
    except (ValueError, ZeroDivisionError):
        pass
    energy = values.pop("energy_joules", "")
    try:
        joules, time_s = float(energy), float(values.get("time_s") or 0)
    except (ValueError, OverflowError):
        return values
    if 0 < joules < 2.0**63 and time_s > 0:  # Slurm's NO_VAL64, 2^64 - 2, marks an unknown energy
        values["power_watts"] = joules / time_s
    return values


def _gib(text: str) -> float | None:
    """Return the memory of a whole job in GiB, read from a text; None if it is unknown.

    Releases of Slurm before 21.08 state the memory per node or per CPU instead of per job. The memory of the
    job then counts as unknown.
    """
    match = _MEMORY.fullmatch(text)
    return float(match[1]) * _MEMORY_GIB[match[2].upper()] if match else None


def _unix_seconds(text: str) -> str:
    """Convert a time as printed by sacct to Unix seconds, as text. Return other text unchanged."""
    try:
        return str(datetime.fromisoformat(text).timestamp())
    except (ValueError, OverflowError, OSError):
        return text


def _duration(text: str) -> str:
    """Convert `[days-][hours:]minutes:seconds` to the number of seconds, as text.

    The result is empty for words such as `UNLIMITED`.
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        return "" if text.isalpha() or text == "Partition_Limit" else text
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return str(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _from_json(job: Mapping[str, Any], units: str) -> dict[str, Any]:
    """Return the values of a job in `sacct --json`, by the column names of `WorkloadRows`."""
    time = job["time"]
    limit = _plain(time.get("limit"))
    size = job.get("allocation_nodes") if units == "nodes" else _allocated(job, units)
    values = {
        "job_id": str(job["job_id"]),
        "user": job.get("user") or "",
        "name": job.get("name") or "",
        "partition": job.get("partition") or "",
        "account": job.get("account") or "",
        "qos": job.get("qos") or "",
        "state": _state(job.get("state")),
        "submit_s": _or_empty(_plain(time["submission"])),
        "time_s": _or_empty(_plain(time["elapsed"])),
        "units": _or_empty(size),
        "time_limit_s": "" if limit is None else 60.0 * limit,
        "energy_joules": _plain((job.get("tres") or {}).get("consumed_energy")) or "",
    }
    return _converted(values)


def _state(state: Any) -> str:
    """Return the state of a job from the JSON of sacct. Newer Slurm releases print a list of states."""
    current = state.get("current") if isinstance(state, Mapping) else state
    return str((current[0] if current else "") if isinstance(current, list) else current or "")


def _allocated(job: Mapping[str, Any], units: str) -> float | None:
    """Return the number of allocated CPUs or GPUs of a job in the JSON of sacct; None if it states none."""
    resource = ("gres", "gpu") if units == "gpus" else ("cpu", "")
    for entry in (job.get("tres") or {}).get("allocated") or []:
        if (entry.get("type"), entry.get("name") or "") == resource:
            return _plain(entry.get("count"))
    return None


def _or_empty(value: float | None) -> float | str:
    return "" if value is None else value


def _plain(value: Any) -> float | None:
    """Return the number in a JSON value of sacct. Return None if no number is set.

    Newer releases of Slurm print numbers as `{"set": true, "number": 5}`.
    """
    if isinstance(value, Mapping):
        return float(value["number"]) if value.get("set") else None
    return float(value) if isinstance(value, (int, float)) else None
