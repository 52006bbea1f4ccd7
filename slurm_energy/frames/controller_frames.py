"""Functions that return data of senergyctld as pandas data frames.

The data are jobs, steps, power traces and the queue.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from slurm_energy.config import load
from slurm_energy.errors import NotFoundError, UsageError
from slurm_energy.frames.typed_frame import ColumnType, FrameColumn, pandas_module, typed_frame
from slurm_energy.protocol.controller_client import ControllerClient
from slurm_energy.reports.time_spec import parse_time
from slurm_energy.reports.trace import combine, decode_trace
from slurm_energy.reports.usage import COMPONENTS, AccountedRecord, JobUsage, summarise

Time = str | float | datetime | None
Names = str | Iterable[str] | None

_ID_COLUMNS: Final = (
    FrameColumn("job_id", ColumnType.COUNT, doc="Slurm's numeric job id"),
    FrameColumn("display_id", ColumnType.TEXT, doc="the id as Slurm shows it: 12, 12_3, 14+0"),
    FrameColumn("restart_count", ColumnType.COUNT, doc="number of requeues before this run"),
    FrameColumn("cluster", ColumnType.CHOICE, doc="Slurm's ClusterName"),
)
_JOB_COLUMNS: Final = (
    FrameColumn("name", ColumnType.TEXT, doc="job name"),
    FrameColumn("user", ColumnType.CHOICE, doc="login name"),
    FrameColumn("account", ColumnType.CHOICE, doc="Slurm account"),
    FrameColumn("partition", ColumnType.CHOICE, doc="partition"),
    FrameColumn("state", ColumnType.CHOICE, doc="state as in sacct"),
    FrameColumn("policy", ColumnType.CHOICE, doc="energy policy"),
    FrameColumn("tag", ColumnType.TEXT, doc="--energy-tag"),
    FrameColumn("model", ColumnType.TEXT, doc="--energy-model"),
    FrameColumn("submit", ColumnType.TIME, "UTC", "submission"),
)
_STEP_COLUMN: Final = FrameColumn("step", ColumnType.TEXT, doc="Slurm's step name: batch, extern, 0, ...")
_FIGURES: Final = (
    FrameColumn("start", ColumnType.TIME, "UTC", "begin of the measurement"),
    FrameColumn("end", ColumnType.TIME, "UTC", "end of the measurement"),
    FrameColumn("elapsed_s", ColumnType.NUMBER, "s", "time between start and end"),
    FrameColumn("nodes", ColumnType.COUNT, doc="nodes with a record"),
    FrameColumn("cpus", ColumnType.COUNT, doc="allocated CPUs"),
    FrameColumn("energy_joules", ColumnType.NUMBER, "J", "energy on all nodes"),
    *(
        FrameColumn(f"{name}_joules", ColumnType.NUMBER, "J", f"energy of the component {name}")
        for name in COMPONENTS
    ),
    FrameColumn("mean_watts", ColumnType.NUMBER, "W", "mean power of all nodes together"),
    FrameColumn("peak_watts", ColumnType.NUMBER, "W", "sum of the peak powers of the nodes"),
    FrameColumn("edp_joule_seconds", ColumnType.NUMBER, "J*s", "energy-delay product"),
    FrameColumn("ed2p_joule_seconds2", ColumnType.NUMBER, "J*s^2", "energy times time squared"),
    FrameColumn("seconds_above_cap", ColumnType.NUMBER, "s", "time above the requested cap"),
    FrameColumn("throttled_seconds", ColumnType.NUMBER, "s", "time in which hardware throttled"),
    FrameColumn("budget_capped_seconds", ColumnType.NUMBER, "s", "time limited by a power budget"),
    FrameColumn("uncertain_seconds", ColumnType.NUMBER, "s", "time in which a counter was unreadable"),
    FrameColumn("quality", ColumnType.CHOICE, doc="measured, modelled or partial"),
)
JOB_COLUMNS: Final = (*_ID_COLUMNS, *_JOB_COLUMNS, *_FIGURES)
STEP_COLUMNS: Final = (*_ID_COLUMNS, _STEP_COLUMN, *_FIGURES)
QUEUE_COLUMNS: Final = (
    FrameColumn("place", ColumnType.COUNT, doc="place in the order; 1 is first"),
    FrameColumn("job_id", ColumnType.COUNT, doc="Slurm's numeric job id"),
    FrameColumn("display_id", ColumnType.TEXT, doc="the id as Slurm shows it"),
    FrameColumn("name", ColumnType.TEXT, doc="job name"),
    FrameColumn("user", ColumnType.CHOICE, doc="login name"),
    FrameColumn("account", ColumnType.CHOICE, doc="Slurm account"),
    FrameColumn("partition", ColumnType.CHOICE, doc="partition"),
    FrameColumn("score", ColumnType.NUMBER, doc="score of the scheduling policy; lower starts first"),
    FrameColumn("predicted_s", ColumnType.NUMBER, "s", "predicted run time"),
    FrameColumn("predicted_watts", ColumnType.NUMBER, "W", "predicted power"),
    FrameColumn("predicted_joules", ColumnType.NUMBER, "J", "predicted energy"),
)


def client(config: str | Path | None = None) -> ControllerClient:
    """Return a client of the configured senergyctld.

    Args:
        config: configuration file; None means $SENERGY_CONFIG, otherwise /etc/slurm/energy.toml.

    Raises:
        ConfigError: the file cannot be read or is invalid.
    """
    cluster = load(config).cluster
    return ControllerClient(
        cluster.controller_url, cluster.munge_socket, controller_users=cluster.controller_users
    )


def jobs(
    ids: Names | int = None,
    *,
    users: Names = None,
    accounts: Names = None,
    partitions: Names = None,
    nodes: Names = None,
    start: Time = None,
    end: Time = None,
    duplicates: bool = False,
    controller: ControllerClient | None = None,
) -> Any:
    """Return finished jobs that the caller may see, one row per job and run.

    Args:
        ids: job ids such as `12`, `12_3`, `14+0`; None means all jobs.
        users: login names of jobs' owners; None means all users whose jobs the caller may see.
        accounts: names of Slurm accounts; None means any.
        partitions: names of partitions; None means any.
        nodes: names of nodes. A job is returned if it ran on at least one of these nodes. None means any.
        start: return only jobs that ran after this time. The time is a text as for `senergy acct`
            (`now-7days`), Unix seconds, or a datetime. None means no limit.
        end: return only jobs that ran before this time, in one of the forms of `start`. None means no limit.
        duplicates: also return earlier runs of requeued jobs.
        controller: client of the senergyctld to query; None means the configured controller.

    Returns:
        Data frame with `JOB_COLUMNS`.

    Raises:
        UsageError: a time or job id is malformed.
        UnavailableError: the controller does not answer, or pandas is missing.
        ForbiddenError: a selected job belongs to another user.
    """
    found = _usages(
        _query(ids, users, accounts, partitions, nodes, start, end, duplicates), controller, duplicates
    )
    return typed_frame(JOB_COLUMNS, (_job_row(usage) for usage in found))


def steps(
    ids: Names | int = None,
    *,
    users: Names = None,
    accounts: Names = None,
    partitions: Names = None,
    nodes: Names = None,
    start: Time = None,
    end: Time = None,
    duplicates: bool = False,
    controller: ControllerClient | None = None,
) -> Any:
    """Return the Slurm steps of jobs as a data frame with one row per step.

    The arguments and errors are the same as those of `jobs`.

    Returns:
        Data frame with `STEP_COLUMNS`.
    """
    query = _query(ids, users, accounts, partitions, nodes, start, end, duplicates) | {"steps": "1"}
    rows = (
        _row(step) | {"step": step.first.step}
        for usage in _usages(query, controller, duplicates)
        for step in usage.steps
    )
    return typed_frame(STEP_COLUMNS, rows)


def trace(job: str | int, *, cluster: str | None = None, controller: ControllerClient | None = None) -> Any:
    """Return the power trace of a job, summed over its nodes, in watts.

    Args:
        job: job id such as `12`, `12_3`, `14+0`.
        cluster: Slurm's name of the job's cluster; None means that only one cluster has a job with this id.
        controller: client of the senergyctld to query; None means the configured controller.

    Returns:
        Data frame with one column per component and the column `total`. The index is the start of each
        interval (UTC). `frame.attrs["interval_s"]` is the length of an interval.

    Raises:
        NotFoundError: the job does not exist, or its trace has been deleted.
        UsageError: the id names several jobs.
    """
    answer = (controller or client()).get(f"/v1/jobs/{quote(str(job), safe='')}")
    usage = only_job(job, answer, cluster)
    if usage is None:
        raise NotFoundError(f"job {job}", "it has no energy record")
    return trace_frame(usage)


def only_job(job: str | int, answer: Mapping[str, Any], cluster: str | None) -> JobUsage | None:
    """Return the last run of the only job in a response of `GET /v1/jobs/ID`; None if there is no job.

    Args:
        job: the id in the request.
        answer: the response. It contains the jobs of all clusters that share the controller.
        cluster: Slurm's name of the job's cluster; None means any.

    Raises:
        UsageError: the id names several tasks or components, or jobs of several clusters.
    """
    records = (AccountedRecord.from_json(item) for item in answer.get("records", []))
    usages = [
        usage
        for usage in summarise(records)
        if usage.first.step is None and cluster in (None, usage.first.cluster)
    ]
    clusters = sorted({usage.first.cluster for usage in usages})
    if len(clusters) > 1:
        raise UsageError(
            f"job {job}",
            f"the clusters {' and '.join(clusters)} have a job with this id",
            f"name one: cluster='{clusters[0]}'",
        )
    # Records of the other components of a heterogeneous job may arrive later.
    if len(usages) > 1 or any(usage.display_id.startswith(f"{job}+") for usage in usages):
        raise UsageError(
            f"job {job}",
            "it has several tasks or components",
            f"frames.jobs('{job}') returns all of them, frames.trace('{usages[0].display_id}') one trace",
        )
    return usages[0] if usages else None


def trace_frame(usage: JobUsage) -> Any:
    """Return the power trace of a job as `trace` does.

    Raises:
        NotFoundError: the trace has been deleted.
    """
    pandas = pandas_module()
    traces = [decode_trace(data) for data in usage.traces.values()]
    if not traces:
        raise NotFoundError(
            f"job {usage.display_id}", "it has no power trace (controller.trace_retention_days)"
        )
    joined = traces[0] if len(traces) == 1 else combine(traces, max(one.length for one in traces))
    index = pandas.to_datetime(
        [joined.start + number * joined.interval_s for number in range(joined.length)], unit="s", utc=True
    )
    columns = {name: list(column) for name, column in joined.watts.items()}
    frame = pandas.DataFrame(columns | {"total": list(joined.total())}, index=index, dtype="float64")
    frame.index.name = "time"
    frame.attrs["units"] = dict.fromkeys(frame.columns, "W")
    frame.attrs["interval_s"] = joined.interval_s
    return frame


def queue(*, controller: ControllerClient | None = None) -> Any:
    """Return the pending jobs that the caller may see, in the order of senergyctld's last ranking.

    Returns:
        Data frame with `QUEUE_COLUMNS`, and one column `term_NAME` for each weighted term of the score.
    """
    answer = (controller or client()).get("/v1/priority", {})
    listed: Sequence[Mapping[str, Any]] = answer.get("jobs") or []
    terms = dict.fromkeys(term["name"] for job in listed for term in job.get("terms") or ())
    columns = [*QUEUE_COLUMNS, *(FrameColumn(f"term_{name}", ColumnType.NUMBER) for name in terms)]
    return typed_frame(columns, (_queue_row(job) for job in listed))


def _queue_row(job: Mapping[str, Any]) -> dict[str, Any]:
    predicted = job.get("predicted") or {}
    row = {column.name: job.get(column.name) for column in QUEUE_COLUMNS}
    row["predicted_s"], row["predicted_watts"] = predicted.get("time_s"), predicted.get("power_watts")
    row["predicted_joules"] = predicted.get("energy_joules")
    return row | {f"term_{term['name']}": term["value"] for term in job.get("terms") or ()}


def _usages(
    query: Mapping[str, str], controller: ControllerClient | None, duplicates: bool
) -> list[JobUsage]:
    answer = (controller or client()).get("/v1/records", dict(query))
    return summarise(
        (AccountedRecord.from_json(item) for item in answer.get("records", [])), duplicates=duplicates
    )


def _job_row(usage: JobUsage) -> dict[str, Any]:
    info, first = usage.job, usage.first
    return _row(usage) | {
        "name": info.name,
        "user": info.user or first.user,
        "account": info.account or None,
        "partition": info.partition or first.partition,
        "state": info.state,
        "policy": first.policy,
        "tag": first.tag,
        "model": first.model,
        "submit": info.submit,
    }


def _row(usage: JobUsage) -> dict[str, Any]:
    first = usage.first
    joules = {f"{name}_joules": usage.component_joules(name) for name in COMPONENTS}
    figures = {
        column.name: getattr(usage, column.name)
        for column in _FIGURES
        if column.name not in joules and column.name not in ("nodes", "quality")
    }
    return (
        figures
        | joules
        | {
            "job_id": first.job_id,
            "display_id": usage.job.display_id or str(first.job_id),
            "restart_count": first.restart_count,
            "cluster": first.cluster,
            "nodes": len(usage.nodes),
            "quality": None if usage.quality is None else str(usage.quality),
        }
    )


def _query(
    ids: Names | int,
    users: Names,
    accounts: Names,
    partitions: Names,
    nodes: Names,
    start: Time,
    end: Time,
    duplicates: bool = False,
) -> dict[str, str]:
    lists = {
        "job": _words("ids", str(ids) if isinstance(ids, int) else ids),
        "user": _words("users", users),
        "account": _words("accounts", accounts),
        "partition": _words("partitions", partitions),
        "node": _words("nodes", nodes),
        "start": "" if start is None else repr(seconds(start)),
        "end": "" if end is None else repr(seconds(end)),
        "duplicates": "1" if duplicates else "",
    }
    return {key: value for key, value in lists.items() if value}


def _words(argument: str, names: Names) -> str:
    listed = [names] if isinstance(names, str) else [str(name) for name in names or ()]
    if names is not None and not listed:
        raise UsageError(f"{argument}: the list is empty", todo="leave it out to select all")
    return ",".join(listed)


def seconds(time: str | float | datetime) -> float:
    """Return a time argument as Unix seconds.

    Raises:
        UsageError: the text is not a time, or the number is not finite.
    """
    if isinstance(time, datetime):
        return time.timestamp()
    if isinstance(time, str):
        return parse_time(time, datetime.now())
    if not math.isfinite(time):
        raise UsageError(f"time: {time} is not a time")
    return float(time)
