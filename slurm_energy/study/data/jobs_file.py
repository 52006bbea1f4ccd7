"""Reader of jobs from CSV files and from the output of `sacct -P`.

Each job has a start and an end.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.safe_text import unescape_csv
from slurm_energy.simulator.inputs.csv_records import Record, delimiter_of, records
from slurm_energy.simulator.inputs.input_problems import InputProblems
from slurm_energy.simulator.inputs.line_reader import text_lines
from slurm_energy.slurm.tres import parse_tres
from slurm_energy.study.data.jobs_table import COLUMNS, NUMBERS, TEXTS, JobsTable, from_rows
from slurm_energy.study.data.time_zone import time_zone

_ALIASES: Final[Mapping[str, str]] = {
    "JobIDRaw": "job_id",
    "JobID": "job_id",
    "id": "job_id",
    "JobName": "name",
    "User": "user",
    "Account": "account",
    "Partition": "partition",
    "State": "state",
    "class": "job_class",
    "NNodes": "nodes",
    "AllocNodes": "nodes",
    "nodes_req": "nodes",
    "AllocCPUS": "cpus",
    "NCPUS": "cpus",
    "processors_req": "cpus",
    "gpus_req": "gpus",
    "Submit": "submit_s",
    "submit_time": "submit_s",
    "Start": "start_s",
    "start_time": "start_s",
    "End": "end_s",
    "end_time": "end_s",
    "Elapsed": "run_s",
    "ElapsedRaw": "run_s",
    "run_time": "run_s",
    "wallclock_req": "time_limit_s",
    "Timelimit": "time_limit_s",
    "TimelimitRaw": "limit_minutes",
    "AllocTRES": "tres",
    "ConsumedEnergyRaw": "energy_joules",
    "ConsumedEnergy": "energy_joules",
}
"""Our names of the columns of sacct and of published Slurm traces."""
_EXTRA: Final = ("run_s", "limit_minutes", "tres")
_TIMES: Final = ("submit_s", "start_s", "end_s")
_DURATION: Final = re.compile(r"(?:(\d{1,6})-)?(?:(\d{1,6}):)?(\d{1,6}):(\d{1,6}(?:\.\d{1,9})?)", re.ASCII)
_SUFFIXES: Final = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_UNKNOWN: Final = frozenset({"", "Unknown", "None", "N/A", "NONE", "UNLIMITED", "Partition_Limit", "(null)"})
_MAX_TEXT: Final = 256


@dataclass(frozen=True, slots=True)
class LoadedJobs:
    """Jobs that were read from a source, and remarks about the source as lines of text."""

    jobs: JobsTable
    notes: list[str] = field(default_factory=list)


def read_jobs(path: Path, renamed: Mapping[str, str] | None = None, timezone: str = "") -> LoadedJobs:
    """Read a CSV file with a header, or a file with the output of `sacct -P` or `sacct -p`.

    Lines of Slurm steps are left out. Unreadable lines are skipped and reported.

    Args:
        path: the file, possibly compressed.
        renamed: maps a column name of `JobsTable` to the name of this column in the file.
        timezone: time zone of times that name no time zone; an empty value means UTC.

    Raises:
        UsageError: the file is unreadable or empty, lacks a column, or has no job.
    """
    problems = InputProblems(path)
    try:
        lines = text_lines(path, problems)
        head = next(((number, text) for number, text in lines if text.strip()), None)
        if head is None:
            raise UsageError(f"{path}", "is empty", "the first line must name the columns")
        delimiter = delimiter_of(head[1])
        quotes = delimiter != "|"
        header = next(records(iter([head]), delimiter, problems, quotes=quotes), (0, [""]))[1]
        columns = _columns([name.strip() for name in header], renamed or {}, f"{path}:{head[0]}")
        found = records(lines, delimiter, problems, quotes=quotes)
        found = found if quotes else _unambiguous(found, len(header), problems)
        rows = list(_rows(found, columns, timezone, problems, escaped=quotes))
    except OSError as error:
        raise UsageError(f"{path}", error.strerror or str(error), "name a file with jobs") from None
    if not rows:
        raise UsageError(f"{path}", "has no job", next(iter(problems.report()), ""))
    return LoadedJobs(from_rows(rows), problems.report())


def _columns(names: list[str], renamed: Mapping[str, str], where: str) -> dict[str, int]:
    """Find the columns of a jobs file that the study needs.

    Return the index of each column in the file, under the column's name in `JobsTable`.
    """
    known = (*COLUMNS, *_EXTRA)
    for own, name in renamed.items():
        if own not in known:
            near = get_close_matches(own, known, 1)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"
            raise UsageError(f"--column: '{shown(own)}' is not known", todo=hint)
        if name not in names:
            raise UsageError(f"{where}: there is no column '{shown(name)}'", f"it has {', '.join(names)}")
    columns = {own: names.index(name) for own, name in renamed.items()}
    for index, name in enumerate(names):
        own = name if name in known else _ALIASES.get(name, "")
        if own and name not in renamed.values():
            columns.setdefault(own, index)
    if "JobIDRaw" in names and "job_id" not in renamed:
        columns["job_id"] = names.index("JobIDRaw")
    for needed in ("submit_s", "start_s"):
        if needed not in columns:
            todo = f"it has {', '.join(names)}; name the column: --column {needed}=NAME"
            raise UsageError(f"{where}: no column for {needed}", todo)
    if not {"end_s", "run_s"} & columns.keys():
        raise UsageError(f"{where}: no column for end_s or run_s", "name one: --column end_s=NAME")
    return columns


def _unambiguous(lines: Iterator[Record], columns: int, problems: InputProblems) -> Iterator[Record]:
    """Yield the lines of sacct, except lines in which a field contains the delimiter.

    sacct does not quote fields. Without this check, a delimiter in the name of a job could forge the job's
    user and energy.
    """
    for number, fields in lines:
        if len(fields) > columns:
            problems.skip("a text contains |, the line has too many columns", [number])
            continue
        yield number, fields


def _rows(
    lines: Iterator[tuple[int, list[str]]],
    columns: Mapping[str, int],
    timezone: str,
    problems: InputProblems,
    *,
    escaped: bool,
) -> Iterator[dict[str, Any]]:
    width = max(columns.values()) + 1
    for number, fields in lines:
        if len(fields) < width:
            problems.skip("the line has too few columns", [number])
            continue
        texts = {own: fields[index].strip() for own, index in columns.items()}
        if "." in texts.get("job_id", ""):  # a step
            continue
        if escaped:
            texts |= {name: unescape_csv(texts[name]) for name in TEXTS if name in texts}
        try:
            row = job_row(texts, timezone)
        except ValueError as error:
            problems.skip(str(error), [number])
            continue
        yield row


def job_row(texts: Mapping[str, str], timezone: str = "") -> dict[str, Any]:
    """Return the values of a job by column name of `JobsTable`.

    Args:
        texts: fields as text, by column name of `JobsTable` or by `run_s`, `limit_minutes` or `tres`.
        timezone: time zone of times that name no time zone; an empty value means UTC.

    Raises:
        ValueError: a value is malformed or impossible; the message describes the fault.
    """
    row: dict[str, Any] = {name: texts.get(name, "")[:_MAX_TEXT] for name in TEXTS}
    row["state"] = row["state"].split(" ")[0].rstrip("+")
    zone = time_zone(timezone)
    for name in NUMBERS:
        text = texts.get(name, "")
        if name in _TIMES:
            row[name] = _time(text, zone, name)
        elif name == "time_limit_s":
            row[name] = _duration(text, name)
        else:
            row[name] = _number(text, name)
    run_s = _duration(texts.get("run_s", ""), "run_s")
    if row["end_s"] is None and row["start_s"] is not None and run_s is not None:
        row["end_s"] = row["start_s"] + run_s
    minutes = texts.get("limit_minutes", "")
    if row["time_limit_s"] is None and minutes.isdecimal():
        row["time_limit_s"] = 60.0 * int(minutes)
    allocated = parse_tres(texts.get("tres"))
    for name in ("nodes", "cpus", "gpus"):
        if row[name] is None:
            row[name] = getattr(allocated, name)
    if row["energy_joules"] == 0:  # sacct prints 0 where no plugin measured
        row["energy_joules"] = None
    _check(row)
    return row


def _check(row: Mapping[str, Any]) -> None:
    submit_s, start_s, end_s = (row[name] for name in _TIMES)
    if submit_s is None:
        raise ValueError("the time of submission is missing")
    if start_s is not None and end_s is not None and end_s < start_s:
        raise ValueError("the job ends before it starts")
    if any(row[name] is not None and row[name] < 0 for name in NUMBERS):
        raise ValueError("a value is negative")


def _time(text: str, zone: tzinfo, name: str) -> float | None:
    if text in _UNKNOWN:
        return None
    try:
        value = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"{name}: '{shown(text)}' is not a time") from None
        return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp()
    if not math.isfinite(value) or abs(value) > 1e11:
        raise ValueError(f"{name}: '{shown(text)}' is not a time in Unix seconds")
    return value


def _duration(text: str, name: str) -> float | None:
    if match := _DURATION.fullmatch(text):
        days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return _number(text, name)


def _number(text: str, name: str) -> float | None:
    if text in _UNKNOWN:
        return None
    factor = _SUFFIXES.get(text[-1].upper(), 0.0) if name == "energy_joules" else 0.0
    try:
        value = float(text[:-1]) * factor if factor else float(text)
    except ValueError:
        raise ValueError(f"{name}: '{shown(text)}' is not a number") from None
    if math.isnan(value):
        return None
    if math.isinf(value):
        raise ValueError(f"{name}: '{shown(text)}' is not finite")
    return value
