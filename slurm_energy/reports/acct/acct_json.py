"""Document of `senergy acct --json` and `--yaml`: the document of `sacct --json`, with energy added.

Where sacct cannot write the document (no slurmdbd, or no data parser installed), the document is built from
rows. Such a document has the shape of Slurm 24.11: `meta`, `errors`, `warnings`, `jobs`, and numbers as
`{"set", "infinite", "number"}`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from slurm_energy import __version__
from slurm_energy.reports.acct.acct_fields import catalogue
from slurm_energy.reports.acct.rows import AcctRow
from slurm_energy.reports.labels.json_view import figures, node_object
from slurm_energy.reports.labels.settings import applied_part
from slurm_energy.user_lookup import uid_of

FORMAT_VERSION: Final = 2
BUILT_FIELDS: Final = (
    *("JobID", "JobIDRaw", "JobName", "Account", "AllocNodes", "Cluster", "Partition", "User", "Group"),
    *("State", "ExitCode", "Elapsed", "ElapsedRaw", "Eligible", "Submit", "Start", "End", "TimelimitRaw"),
    *("NodeList", "NNodes", "NTasks", "QOS", "Priority", "Reason", "WorkDir", "SubmitLine", "WCKey"),
    *("AllocTRES", "ReqTRES", "UID"),
)
"""Fields of sacct from which a document is built."""
_ID: Final = re.compile(r"(?P<base>\d+)(?:_(?P<task>\d+)|\+(?P<offset>\d+))?", re.ASCII)
_VALUES: Final = {
    field.name: field
    for field in catalogue(None)
    if field.name in ("EDS", "GPUShare", "Saved", "SavedEnergy")
}


def job_cells(jobs: Sequence[Any]) -> Iterator[dict[str, str]]:
    """Yield a row for each job and step in the list `jobs` of `sacct --json`. A job precedes its steps.

    Elements of the lists that are not JSON objects are skipped, here and in `add_energy`.
    """
    for number, job in enumerate(jobs):
        if not isinstance(job, dict):
            continue
        uid = uid_of(str(job.get("user") or ""))
        common = {
            "Cluster": str(job.get("cluster") or ""),
            "Account": str(job.get("account") or ""),
            "UID": "" if uid is None else str(uid),
            "DBIndex": str(number),
        }
        job_id = str(_number(job.get("job_id")) or 0)
        own = {"JobID": _displayed_id(job), "JobIDRaw": job_id, "NodeList": str(job.get("nodes") or "")}
        yield common | _times(job) | own
        for step in _steps(job):
            nodes = step.get("nodes")
            names = nodes.get("range") if isinstance(nodes, dict) else ""
            yield common | _times(step) | {"JobIDRaw": f"{job_id}.{_step_name(step)}", "NodeList": str(names)}


def add_energy(document: dict[str, Any], rows: Sequence[AcctRow], scope: str, notes: Sequence[str]) -> None:
    """Add the key `energy` to each job and step of a document of `sacct --json`.

    Args:
        document: document of `sacct --json`. This function changes it.
        rows: rows of the jobs and steps, in the order in which `job_cells` yields them.
        scope: value of `scope` in the controller's response, which says whose energy the caller may see.
        notes: texts to add to the `warnings` of the document.
    """
    remaining = iter(rows)
    for job in document["jobs"]:
        if isinstance(job, dict):
            job["energy"] = energy_object(next(remaining))
            for step in _steps(job):
                step["energy"] = energy_object(next(remaining))
    _describe(document, scope, notes)


def built_document(rows: Sequence[AcctRow], scope: str, notes: Sequence[str]) -> dict[str, Any]:
    """Return a JSON document of jobs and steps built from rows, in the layout of Slurm 24.11."""
    jobs: list[dict[str, Any]] = []
    for row in rows:
        if not row.is_step or not jobs or jobs[-1]["job_id"] != _base(row):
            jobs.append(_job(row))
        if row.is_step:
            jobs[-1]["steps"].append(_step(row))
    document = {"meta": {}, "errors": [], "jobs": jobs}
    _describe(document, scope, notes)
    return document


def energy_object(row: AcctRow) -> dict[str, Any] | None:
    """Return the energy of a job or step. None if the energy is unknown, or the caller may not see it."""
    usage = row.usage
    if usage is None:
        return None
    first, baseline = usage.first, row.baseline
    described: dict[str, Any] = {}
    if first.step is None:
        described = {
            # Slurm's own id first: a record may have arrived before the facts about its job.
            "display_id": row.cells.get("JobID") or usage.display_id,
            "policy": first.policy,
            "applied": applied_part(usage.records),
            "requested": dict(first.requested),
            "model": first.model,
            "tag": first.tag,
            "restart_count": first.restart_count,
            "missing_nodes": usage.missing_nodes,
        }
    return {
        **described,
        **figures(usage),
        "gpu_share_percent": _VALUES["GPUShare"].value(row),
        "untuned_runs": None if baseline is None else baseline.runs,
        "saved_joules": _VALUES["SavedEnergy"].value(row),
        "saved_percent": _VALUES["Saved"].value(row),
        "eds": _VALUES["EDS"].value(row),
        "footprint": None if row.footprint is None else row.footprint.to_json(),
        "nodes": [node_object(record) for record in usage.records],
    }


def _describe(document: dict[str, Any], scope: str, notes: Sequence[str]) -> None:
    meta = document.get("meta")
    own = {"format": FORMAT_VERSION, "version": __version__, "scope": scope}
    document["meta"] = (meta if isinstance(meta, dict) else {}) | {"senergy": own}
    warnings = document.get("warnings")
    added = [{"description": text, "source": "senergy acct"} for text in notes]
    document["warnings"] = [*(warnings if isinstance(warnings, list) else []), *added]


def _steps(job: Mapping[str, Any]) -> list[dict[str, Any]]:
    steps = job.get("steps")
    return [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []


def _displayed_id(job: Mapping[str, Any]) -> str:
    """Return a job id as users see it: `12`, array task `12_3`, heterogeneous component `14+0`."""
    array, het = (value if isinstance(value := job.get(key), dict) else {} for key in ("array", "het"))
    if (base := _number(array.get("job_id"))) and (task := _number(array.get("task_id"))) is not None:
        return f"{base}_{task}"
    if (base := _number(het.get("job_id"))) and (offset := _number(het.get("job_offset"))) is not None:
        return f"{base}+{offset}"
    return str(_number(job.get("job_id")) or 0)


def _times(item: Mapping[str, Any]) -> dict[str, str]:
    times, state = item.get("time"), item.get("state")
    times = times if isinstance(times, dict) else {}
    names = {"Submit": "submission", "Start": "start", "End": "end"}
    cells = {name: str(_number(times.get(key)) or "Unknown") for name, key in names.items()}
    current = state.get("current") if isinstance(state, dict) else state
    word = current[0] if isinstance(current, list) and current else current
    return cells | {"State": str(word or "")}


def _number(value: Any) -> int | None:
    """Return a number from the JSON output of sacct; None if the number is not set.

    Newer releases of sacct write a number as an object with the keys `set` and `number`.
    """
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") else None
    return int(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def _step_name(step: Mapping[str, Any]) -> str:
    """Return the name of a Slurm step without job id, such as `batch` or `0`.

    Slurm 22.05 writes the name alone. Slurm 23.02 writes an object with the key `step_id`. Later releases
    write the job id before the name: `12.batch`, `12.0`.
    """
    identity = step.get("step")
    name = identity.get("id") if isinstance(identity, dict) else ""
    if isinstance(name, dict):
        name = name.get("step_id", "")
    return str(name).rpartition(".")[2]


def _base(row: AcctRow) -> int:
    return int(row.cells["JobIDRaw"].partition(".")[0])


def _text(row: AcctRow, name: str) -> str:
    return row.cells.get(name, "")


def _count(row: AcctRow, name: str) -> int:
    """Return the number in a cell, rounded as the column Elapsed is; 0 if the cell contains no number."""
    text = _text(row, name)
    return round(float(text)) if text.replace(".", "", 1).isdecimal() else 0


def _set(value: str | int | None) -> dict[str, Any]:
    """Return a number as the JSON object that Slurm's data parser uses."""
    known = value is not None and str(value).isdecimal()
    return {"set": known, "infinite": value == "UNLIMITED", "number": int(value or 0) if known else 0}


def _job(row: AcctRow) -> dict[str, Any]:
    match = _ID.match(_text(row, "JobID"))
    task, offset = (match["task"], match["offset"]) if match else (None, None)
    whole = {} if row.is_step else {"energy": energy_object(row)}
    return {
        "account": _text(row, "Account"),
        "allocation_nodes": _count(row, "AllocNodes" if _text(row, "AllocNodes") else "NNodes"),
        "array": {"job_id": int(match["base"]) if match and task else 0, "task_id": _set(task)},
        "association": {
            "account": _text(row, "Account"),
            "cluster": _text(row, "Cluster"),
            "user": _text(row, "User"),
        },
        "cluster": _text(row, "Cluster"),
        "exit_code": _exit_code(row),
        "group": _text(row, "Group"),
        "het": {"job_id": int(match["base"]) if match and offset else 0, "job_offset": _set(offset)},
        "job_id": _base(row),
        "name": _text(row, "JobName"),
        "nodes": _text(row, "NodeList"),
        "partition": _text(row, "Partition"),
        "priority": _set(_text(row, "Priority")),
        "qos": _text(row, "QOS"),
        "state": {"current": [row.state], "reason": _text(row, "Reason")},
        "submit_line": _text(row, "SubmitLine"),
        "time": _time(row) | {"submission": _count(row, "Submit"), "limit": _set(_text(row, "TimelimitRaw"))},
        "tres": {"allocated": _tres(row, "AllocTRES"), "requested": _tres(row, "ReqTRES")},
        "user": _text(row, "User"),
        "wckey": {"wckey": _text(row, "WCKey"), "flags": []},
        "working_directory": _text(row, "WorkDir"),
        "steps": [],
        **whole,
    }


def _step(row: AcctRow) -> dict[str, Any]:
    return {
        "time": _time(row),
        "exit_code": _exit_code(row),
        "nodes": {"count": _count(row, "NNodes"), "range": _text(row, "NodeList")},
        "tasks": {"count": _count(row, "NTasks")},
        "state": [row.state],
        "step": {"id": _text(row, "JobIDRaw"), "name": _text(row, "JobName")},
        "tres": {"allocated": _tres(row, "AllocTRES")},
        "energy": energy_object(row),
    }


def _time(row: AcctRow) -> dict[str, Any]:
    return {
        "elapsed": _count(row, "ElapsedRaw"),
        "eligible": _count(row, "Eligible"),
        "start": _count(row, "Start"),
        "end": _count(row, "End"),
    }


def _exit_code(row: AcctRow) -> dict[str, Any]:
    """Return the exit code and the status of a job or step, as a JSON object.

    The exit code may be unknown, for example without slurmdbd. The list `status` then contains PENDING if the
    job or step has not ended, and is empty otherwise.
    """
    text = _text(row, "ExitCode")
    if not text and row.usage is not None and not row.is_step:
        text = row.usage.job.exit_code or ""
    code, _, signal = text.partition(":")
    if not code:
        status = ["PENDING"] if row.unfinished else []
    else:
        status = ["SIGNALED" if signal not in ("", "0") else "SUCCESS" if code == "0" else "ERROR"]
    return {
        "status": status,
        "return_code": _set(code),
        "signal": {"id": _set(signal or None), "name": ""},
    }


def _tres(row: AcctRow, name: str) -> list[dict[str, Any]]:
    items = []
    for item in filter(None, _text(row, name).split(",")):
        label, _, count = item.partition("=")
        kind, _, rest = label.partition("/")
        items.append({"type": kind, "name": rest, "count": int(count) if count.isdecimal() else count})
    return items
