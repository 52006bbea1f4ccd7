"""Readers of the jobs that sacct prints as text or as JSON.

The values of a job have the column names, quantities and units of `WorkloadRows`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any

from slurm_energy.errors import UsageError
from slurm_energy.quantities import shown
from slurm_energy.simulator.inputs.csv_records import Record
from slurm_energy.simulator.inputs.workload_rows import NEEDED_COLUMNS, Line
from slurm_energy.slurm.tres import parse_tres

_SUFFIXES = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_LICENSES = re.compile(r"(?:^|,)license/([^=,]+)=(\d+)")
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)([KMGTPkmgtp])")
_MEMORY_GIB = {"K": 2.0**-20, "M": 2.0**-10, "G": 1.0, "T": 2.0**10, "P": 2.0**20}
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
_NODE_COUNTS = ("NNodes", "AllocNodes")


def lines_of_text(rows: Iterator[Record], names: list[str], where: str, units: str) -> Iterator[Line]:
    """Yield the jobs in the parsable output of sacct.

    Job steps are skipped, because the line of a job already includes its steps. Steps are recognised by the
    dot in their job id, so output without a job id must not contain steps (`sacct -X`).
    """
    sizes = {"cpus": ("AllocCPUS", "NCPUS"), "gpus": ("ReqTRES", "AllocTRES")}.get(units, _NODE_COUNTS)
    columns = [*_SACCT.items(), *((name, "units") for name in sizes)]
    present = {own: names.index(name) for name, own in columns if name in names}
    missing = [name for name in NEEDED_COLUMNS if name not in present]
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
    return str(parse_tres(text).gpus or 0)


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


def values_of_json(job: Mapping[str, Any], units: str) -> dict[str, Any]:
    """Return the values of a job in `sacct --json`, by the column names of `WorkloadRows`."""
    time = job["time"]
    limit = _plain(time.get("limit"))
    tres = _allocated_tres(job)
    size = job.get("allocation_nodes") if units == "nodes" else _allocated(tres, units)
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
        "energy_joules": _or_empty(tres.get("energy")),
    }
    return _converted(values)


def _state(state: Any) -> str:
    """Return the state of a job from the JSON of sacct. Newer Slurm releases print a list of states."""
    current = state.get("current") if isinstance(state, Mapping) else state
    return str((current[0] if current else "") if isinstance(current, list) else current or "")


def _allocated(tres: Mapping[str, float | None], units: str) -> float | None:
    """Return the number of allocated CPUs or GPUs from the result of `_allocated_tres`; None if unknown."""
    if units != "gpus":
        return tres.get("cpu")
    # Sites may account for GPUs by type only.
    by_kind = [count or 0.0 for name, count in tres.items() if name.startswith("gres/gpu:")]
    return tres.get("gres/gpu", sum(by_kind) if by_kind else None)


def _allocated_tres(job: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the allocated TRES of a job in the JSON of sacct, by name: `cpu`, `gres/gpu`.

    Slurm lists the energy of a job as a TRES too.
    """
    entries = (job.get("tres") or {}).get("allocated") or []
    names = ("/".join(filter(None, (entry.get("type"), entry.get("name")))) for entry in entries)
    return {name: _plain(entry.get("count")) for name, entry in zip(names, entries, strict=True)}


def _or_empty(value: float | None) -> float | str:
    return "" if value is None else value


def _plain(value: Any) -> float | None:
    """Return the number in a JSON value of sacct. Return None if no number is set.

    Newer releases of Slurm print numbers as `{"set": true, "number": 5}`.
    """
    if isinstance(value, Mapping):
        return float(value["number"]) if value.get("set") else None
    return float(value) if isinstance(value, (int, float)) else None
