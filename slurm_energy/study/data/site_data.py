"""Jobs and energy of the running site.

Sources are the records and hourly energy of senergyctld, and Slurm's accounting.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from slurm_energy.errors import UnavailableError
from slurm_energy.protocol.controller_client import ControllerClient
from slurm_energy.protocol.usage_requests import MAX_INTERVALS, USAGE_PATH, UsageRequest
from slurm_energy.reports.usage import AccountedRecord, JobUsage, summarise
from slurm_energy.reports.utilization.usage import UsageDocument
from slurm_energy.slurm.command import Runner
from slurm_energy.slurm.sacct import NoAccountingError, read_rows
from slurm_energy.slurm.tres import gpus_of_run
from slurm_energy.study.data.days import HOUR_S
from slurm_energy.study.data.jobs_file import LoadedJobs, job_row
from slurm_energy.study.data.jobs_table import from_rows
from slurm_energy.study.data.kpis import EnergySeries

_WINDOW_S: Final = 2 * 86400.0
"""Length of the period of one request for records, which bounds the size of a response."""
_CLOCK_SKEW_S: Final = 300.0
_MAX_MISSING: Final = 0.02
"""Share of node-seconds without delivered energy up to which the energy of an hour is known."""
_SACCT: Final = {
    "JobID": "job_id",
    "JobName": "name",
    "User": "user",
    "Account": "account",
    "Partition": "partition",
    "State": "state",
    "NNodes": "nodes",
    "AllocCPUS": "cpus",
    "AllocTRES": "tres",
    "Submit": "submit_s",
    "Start": "start_s",
    "End": "end_s",
    "TimelimitRaw": "limit_minutes",
    "ConsumedEnergyRaw": "energy_joules",
}


@dataclass(frozen=True, slots=True)
class SiteData:
    """Jobs and energy of a period. `energy` is None if the caller may not see the energy of nodes."""

    jobs: LoadedJobs
    energy: EnergySeries | None


def read_site(client: ControllerClient, start_s: float, end_s: float, run: Runner | None = None) -> SiteData:
    """Return all jobs of a period and the energy of all nodes by hour.

    Jobs come from sacct. The energy of a job comes from senergyctld's record of the job, or else from sacct.
    Without Slurm's accounting, only jobs with a record are returned. Only operators see all jobs and the
    energy of nodes.

    Args:
        client: client of senergyctld.
        start_s: start of the period in Unix seconds.
        end_s: end of the period.
        run: function that executes a command and returns the command's output; None means that commands run
            on this host.

    Raises:
        UnavailableError: neither senergyctld nor slurmdbd answers.
        ForbiddenError: senergyctld shows the caller no jobs.
    """
    notes: list[str] = []
    runs: dict[tuple[int, int], dict[str, Any]] = {}
    problem = None
    try:
        runs = _recorded_runs(client, start_s, end_s, notes)
        energy = _node_energy(client, start_s, end_s, notes)
    except UnavailableError as error:
        problem, energy = error, None
        notes.append(f"no measured energy: {error}")
    try:
        rows = _accounted_rows(start_s, end_s, run)
    except NoAccountingError as error:
        if problem is not None:
            raise problem from None
        notes.append(f"jobs without an energy record are missing: {error}")
        rows = list(runs.values())
    else:
        _join(rows, runs)
    return SiteData(LoadedJobs(from_rows(rows), notes), energy)


def _recorded_runs(
    client: ControllerClient, start_s: float, end_s: float, notes: list[str]
) -> dict[tuple[int, int], dict[str, Any]]:
    """Return the runs of jobs that senergyctld has recorded, by job id and restart count."""
    runs: dict[tuple[int, int], dict[str, Any]] = {}
    begin_s = start_s
    while begin_s < end_s:
        until_s = min(end_s, begin_s + _WINDOW_S)
        query = {"start": f"{begin_s:.0f}", "end": f"{until_s:.0f}", "duplicates": "1"}
        answer = client.get("/v1/records", query)
        if answer.get("scope", "all") != "all":
            notes.append("jobs of other users are not included: only operators see them")
        records = (AccountedRecord.from_json(item) for item in answer.get("records", []))
        for usage in summarise(records, duplicates=True):
            runs[usage.first.job_id, usage.first.restart_count] = _recorded_row(usage)
        begin_s = until_s
    notes[:] = list(dict.fromkeys(notes))
    return runs


def _recorded_row(usage: JobUsage) -> dict[str, Any]:
    info, first = usage.job, usage.first
    recorded_gpus = sum(len(record.gpus) for record in usage.records)
    complete = usage.missing_nodes in (0, None)
    return {
        "job_id": str(info.display_id or first.job_id),
        "raw_id": first.job_id,
        "name": info.name,
        "user": info.user or first.user,
        "account": info.account,
        "partition": info.partition or first.partition,
        "state": (info.state or "").split(" ")[0],
        "nodes": info.nodes or len(usage.nodes),
        "cpus": usage.cpus,
        "gpus": gpus_of_run(info.requested, recorded_gpus),
        "submit_s": usage.start if info.submit is None else info.submit,
        "start_s": usage.start,
        "end_s": usage.end,
        "energy_joules": usage.energy_joules if complete else None,
        "speed": _speed(first.tuning),
    }


def _speed(tuning: dict[str, Any] | None) -> float | None:
    """Return the relative speed of a tuned job; None if unknown or if the job was not tuned.

    The speed at the chosen hardware settings is divided by the speed without tuning.
    """
    if not tuning or tuning.get("mode") != "on":
        return None
    chosen = tuning.get("chosen")
    for point in tuning.get("points") or ():
        if chosen is not None and point["point"] == chosen:
            return 1.0 / float(point["time_ratio"])
    return None


def _node_energy(
    client: ControllerClient, start_s: float, end_s: float, notes: list[str]
) -> EnergySeries | None:
    first = int(start_s // HOUR_S * HOUR_S)
    edges = list(range(first, int(end_s) + 1, int(HOUR_S)))
    joules: list[float] = []
    missing_s: list[float] = []
    for begin in range(0, len(edges) - 1, MAX_INTERVALS):
        part = edges[begin : begin + MAX_INTERVALS + 1]
        document = UsageDocument.from_json(client.get(USAGE_PATH, UsageRequest(tuple(part)).parameters()))
        if not document.meter_visible:
            notes.append("the energy of idle nodes is not included: only operators see it")
            return None
        sums = [0.0] * (len(part) - 1)
        for row in document.rows:
            sums[row.interval] += row.amounts.energy_joules or 0.0
        joules += sums
        absent = [0.0] * (len(part) - 1)
        for entry in document.data.get("missing_node_seconds") or ():
            absent[int(entry["interval"])] += float(entry["node_seconds"])
        missing_s += absent
    if len(edges) < 2 or not any(joules):
        return None
    start = np.array(edges[:-1], np.float64)
    nodes = max(1, len(client.get("/v1/nodes").get("nodes") or ()))
    is_known = np.array(missing_s) <= _MAX_MISSING * nodes * HOUR_S
    # In an hour without any energy, no node delivered energy: senergyd was not running.
    values = np.where((np.array(joules) > 0) & is_known, joules, np.nan)
    return EnergySeries(start, start + HOUR_S, values, "senergyctld, all nodes")


def _accounted_rows(start_s: float, end_s: float, run: Runner | None) -> list[dict[str, Any]]:
    options = ["-a", "-X", "-D", f"--starttime=uts{start_s:.0f}", f"--endtime=uts{end_s:.0f}"]
    rows = []
    for line in read_rows(options, [*_SACCT, "JobIDRaw"], run):
        texts = {own: line[name] for name, own in _SACCT.items()}
        row = job_row(texts) | {"raw_id": int(line["JobIDRaw"].partition(".")[0])}
        rows.append(row)
    return rows


def _join(rows: Sequence[dict[str, Any]], runs: dict[tuple[int, int], dict[str, Any]]) -> None:
    """Add the energy and speed of recorded runs to the rows of sacct.

    A run and a row belong together if their job ids are equal and their starts differ by at most
    `_CLOCK_SKEW_S`. A job that is requeued soon after its start has several runs within this time. Each run
    therefore belongs to the row with the nearest start, and to one row only.
    """
    by_id: dict[int, list[int]] = {}
    for at, row in enumerate(rows):
        if row["start_s"] is not None:
            by_id.setdefault(row["raw_id"], []).append(at)
    pairs = [
        (distance_s, at, key)
        for key, record in runs.items()
        for at in by_id.get(key[0], ())
        if (distance_s := abs(record["start_s"] - rows[at]["start_s"])) <= _CLOCK_SKEW_S
    ]
    free_rows, free_runs = set(range(len(rows))), set(runs)
    for _, at, key in sorted(pairs):
        if at in free_rows and key in free_runs:
            free_rows.remove(at)
            free_runs.remove(key)
            rows[at].update(energy_joules=runs[key]["energy_joules"], speed=runs[key]["speed"])
