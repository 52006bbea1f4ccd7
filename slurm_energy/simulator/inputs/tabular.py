"""Readers of CSV files with one shape (way to run a job) per line, of sacct and of `senergy acct`."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.simulator.inputs import senergy_acct
from slurm_energy.simulator.inputs.input_problems import InputProblems
from slurm_energy.simulator.inputs.workload_rows import Line, WorkloadRows

NUMBERS = ("submit_s", "time_s", "units", "time_limit_s", "deadline_s", "power_watts", "batch")
TEXTS = ("job_id", "user", "hardware", "name")
_NEEDED = ("submit_s", "time_s", "units")
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
    "ConsumedEnergyRaw": "energy_joules",
}


def read_csv(path: Path, problems: InputProblems, renamed: Mapping[str, str], units: str) -> WorkloadRows:
    """Read a CSV file with a header line, or output of `sacct -P` (columns separated by `|`, sacct's names).

    Args:
        path: the file.
        problems: records skipped lines.
        renamed: by column name of `WorkloadRows`, the name of the column in the file.
        units: unit of job sizes in sacct output, `nodes` or `cpus`; not used for other CSV files.

    Raises:
        UsageError: the file is empty or not text, or has an unknown column or lacks a required one.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            head = file.readline()
            delimiter = "|" if head.count("|") > head.count(",") else ","
            file.seek(0)
            reader: csv.DictReader[str] = csv.DictReader(file, delimiter=delimiter, strict=True)
            if delimiter == "|":  # sacct never quotes: a quotation mark is part of a job's name
                reader = csv.DictReader(file, delimiter=delimiter, strict=True, quoting=csv.QUOTE_NONE)
            names = [name.strip() for name in reader.fieldnames or []]
            reader.fieldnames = names
            if not any(names):
                raise UsageError(f"{path}", "is empty", "the first line must name the columns")
            _refuse_repeated(names, path)
            if delimiter == "|":
                return _rows(_sacct_lines(reader, names, path, units), problems)
            columns = _file_columns(names, renamed, path)
            lines = ((reader.line_num, {own: row[name] for own, name in columns.items()}) for row in reader)
            return _rows(lines, problems)
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}", f"is not UTF-8 text: byte {error.start}") from None
    except csv.Error as error:
        raise UsageError(f"{path}", f"is not CSV: {error}") from None


def read_json(path: Path, problems: InputProblems, units: str) -> WorkloadRows:
    """Read the output of `sacct --json` (Slurm 22.05 and later) or `senergy acct --json`.

    The content of the document shows which of the two it is.

    Raises:
        UsageError: the document is neither.
    """
    lines: Sequence[Line]
    try:
        document = json.loads(path.read_bytes())
        if senergy_acct.is_ours(document):
            lines = senergy_acct.lines(document, units)
        else:
            lines = [(number, _from_json(job, units)) for number, job in enumerate(document["jobs"], 1)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"is not the JSON of sacct or of senergy acct: {shown(str(error))}"
        raise UsageError(f"{path}", reason) from None
    return _rows(lines, problems)


def _file_columns(names: list[str], renamed: Mapping[str, str], path: Path) -> dict[str, str]:
    """Return by column name of `WorkloadRows` the name of the column in the file.

    Args:
        names: column names in the header of the file.
        renamed: names that the user has given for columns with other names.
        path: the file, for error messages.
    """
    columns = (*NUMBERS, *TEXTS)
    for own, name in renamed.items():
        if own not in columns:
            raise UsageError(f"column '{shown(own)}' is not known", todo=f"one of {', '.join(columns)}")
        if name not in names:
            raise UsageError(f"{path}: there is no column '{shown(name)}'", f"it has {', '.join(names)}")
    renamed_names = set(renamed.values())
    for name in names:
        if name not in columns and name not in renamed_names and not renamed:
            near = get_close_matches(name, columns, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(columns)}"
            raise UsageError(f"{path}:1: column '{shown(name)}' is not known", todo=hint)
    result = {own: renamed.get(own, own) for own in columns if renamed.get(own, own) in names}
    missing = [name for name in _NEEDED if name not in result]
    if missing:
        raise UsageError(f"{path}:1: column '{missing[0]}' is missing", f"it has {', '.join(names)}")
    return result


def _refuse_repeated(names: list[str], path: Path) -> None:
    """Raise an error if a column name occurs twice in a header. The choice of a column would be a guess."""
    repeated = [name for name in names if name and names.count(name) > 1]
    if repeated:
        raise UsageError(f"{path}:1: column '{shown(repeated[0])}' occurs twice", todo="remove one")


def _rows(lines: Iterable[Line], problems: InputProblems) -> WorkloadRows:
    """Return workload rows for the lines of a file. Lines with unreadable values are skipped."""
    numbers: list[int] = []
    values: list[list[float]] = []
    texts: list[list[str]] = []
    for line, row in lines:
        problem = _unreadable(row)
        if problem:
            problems.skip(problem, [line])
            continue
        numbers.append(line)
        values.append([_number(row.get(name)) for name in NUMBERS])
        texts.append([str(row.get(name) or "") for name in TEXTS])
    table = np.array(values, np.float64).reshape(-1, len(NUMBERS))
    columns: dict[str, Any] = {name: table[:, index] for index, name in enumerate(NUMBERS)}
    words: dict[str, Any] = {name: [row[index] for row in texts] for index, name in enumerate(TEXTS)}
    line_numbers = np.array(numbers, np.int64)
    words["job"] = [name or index for index, name in enumerate(words.pop("job_id"))]
    return WorkloadRows(line=line_numbers, **words, **columns)


def _unreadable(row: Mapping[str, Any]) -> str:
    """Return the problem that makes a line's values unusable; an empty string if there is none."""
    if None in row or None in row.values():
        return "not as many columns as the header has"
    for name in NUMBERS:
        try:
            _number(row.get(name))
        except ValueError:
            return f"{name} is not a number"
    return ""


def _number(value: Any) -> float:
    """Return a value as a float. An empty text is unknown and gives NaN."""
    if value in (None, "", "Unknown", "None"):
        return float("nan")
    return float(value)


def _sacct_lines(reader: csv.DictReader[str], names: list[str], path: Path, units: str) -> Iterable[Line]:
    """Yield the jobs in sacct's parsable output.

    Steps are skipped, because their jobs already contain them.
    """
    columns = dict(_SACCT, AllocCPUS="units", NCPUS="units")
    if units == "cpus":
        columns = {k: v for k, v in columns.items() if k not in ("NNodes", "AllocNodes")}
    else:
        columns = {k: v for k, v in columns.items() if k not in ("AllocCPUS", "NCPUS")}
    present = {own: name for name, own in reversed(columns.items()) if name in names}
    missing = [name for name in _NEEDED if name not in present]
    if missing:
        raise UsageError(
            f"{path}:1: no column for {missing[0]}",
            f"it has {shown(', '.join(names), 200)}",
            "sacct -P -X -o JobIDRaw,User,Submit,ElapsedRaw,TimelimitRaw,NNodes,AllocCPUS,ConsumedEnergyRaw",
        )
    readers: dict[str, Callable[[str], Any]] = {
        "submit_s": _unix_seconds,
        "time_s": _duration,
        "time_limit_s": _duration,
    }
    for row in reader:
        if None in row or None in row.values():
            yield reader.line_num, row
            continue
        if "." in row[present.get("job_id", names[0])]:
            continue
        values = {own: readers.get(own, str)(row[name]) for own, name in present.items()}
        yield reader.line_num, _converted(values)


def _converted(values: dict[str, Any]) -> dict[str, Any]:
    """Return values of sacct in our units: time limit in seconds, and power computed from the energy."""
    minutes = values.pop("limit_minutes", "")
    if minutes and str(minutes).isdecimal():
        values["time_limit_s"] = 60.0 * float(minutes)
    energy = values.pop("energy_joules", "")
    try:
        joules, time_s = float(energy), float(values.get("time_s") or 0)
    except ValueError:
        return values
    if joules > 0 and time_s > 0:
        values["power_watts"] = joules / time_s
    return values


def _unix_seconds(text: str) -> str:
    """Return a time as printed by sacct as Unix seconds in text form. Other text is returned unchanged."""
    try:
        return str(datetime.fromisoformat(text).timestamp())
    except ValueError:
        return text


def _duration(text: str) -> str:
    """Return the seconds of `[days-][hours:]minutes:seconds` as text; empty for `UNLIMITED` and the like."""
    match = _DURATION.fullmatch(text)
    if match is None:
        return "" if text.isalpha() or text == "Partition_Limit" else text
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return str(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def _from_json(job: Mapping[str, Any], units: str) -> dict[str, Any]:
    """Return the values of one job of `sacct --json` by our column names."""
    time = job["time"]
    limit = _plain(time.get("limit"))
    size = job.get("allocation_nodes") if units == "nodes" else _requested_cpus(job)
    values = {
        "job_id": str(job["job_id"]),
        "user": job.get("user") or "",
        "name": job.get("name") or "",
        "submit_s": time["submission"],
        "time_s": time["elapsed"],
        "units": size if size is not None else "",
        "time_limit_s": "" if limit is None else 60.0 * limit,
        "energy_joules": _plain((job.get("tres") or {}).get("consumed_energy")) or "",
    }
    return _converted(values)


def _requested_cpus(job: Mapping[str, Any]) -> float | None:
    for entry in (job.get("tres") or {}).get("allocated") or []:
        if entry.get("type") == "cpu":
            return _plain(entry.get("count"))
    return None


def _plain(value: Any) -> float | None:
    """Return the number in a JSON value of sacct; None if the value has none.

    Newer releases of Slurm print numbers as `{"set": true, "number": 5}`.
    """
    if isinstance(value, Mapping):
        return float(value["number"]) if value.get("set") else None
    return float(value) if isinstance(value, (int, float)) else None
