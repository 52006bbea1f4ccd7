"""Groups by which `senergy report` sums: account, user, partition and similar attributes of job runs.

The group of a run depends only on the stored records and facts of its job, not on the order of their arrival.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, RowMapping, bindparam, select, tuple_

from slurm_energy.accounting.schema import tables, usage_tables
from slurm_energy.slurm.tres import parse_tres

JOB: Final = "job"
IDLE: Final = "idle"
UNATTRIBUTED: Final = "unattributed"
OFF: Final = "off"
OFF_UNMEASURED: Final = "off-unmeasured"
"""Kinds of groups for the time in which nodes were off: with known energy, and with unknown energy."""
COVERAGE: Final = "coverage"
"""Kind of the groups for the time for which nodes delivered energy."""
_CLOCK_SKEW_S: Final = 300
_GPU_COMPONENT: Final = "gpu["
_UNKNOWN_GPU: Final = "gpu"
_MAX_CACHED: Final = 50_000


class GroupKey(NamedTuple):
    """Attributes by which reports group. An empty text means none or unknown.

    Attributes:
        cluster: name of the cluster.
        kind: kind of energy or time that is summed: `job`, `idle`, `unattributed`, `off`, `off-unmeasured` or
            `coverage`.
        account, user, qos, partition, policy, tag: the job's Slurm account, user, QOS, partition, energy
            policy and tag.
        uid: owner of the job; None means unknown, or not a job.
        gpu_kind: product names of the GPUs; Slurm's GRES type if the run has no record.
        cpus: number of allocated CPUs on all nodes; None means unknown.
    """

    cluster: str
    kind: str = JOB
    account: str = ""
    user: str = ""
    uid: int | None = None
    qos: str = ""
    partition: str = ""
    policy: str = ""
    tag: str = ""
    gpu_kind: str = ""
    cpus: int | None = None

    @property
    def digest(self) -> str:
        """Digest of the attributes of this usage group, by which the group is found in the database.

        A usage group is a combination of attributes, such as account and user. The columns of the attributes
        cannot be compared instead, because NULL never equals NULL.
        """
        return hashlib.sha256(json.dumps(list(self)).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class GroupedRun:
    """One run of a job. A job that Slurm requeues has several runs.

    Attributes:
        key: attributes of the run by which reports group runs.
        restart_count: number of earlier requeues; None means unknown, because the run has no record yet.
        start, end: Unix seconds. An end of None means that the run has not ended, or that its end is
            unknown.
        job: row id of the facts about the job in the database; None means that there are no facts yet.
        gpus: number of allocated GPUs.
    """

    key: GroupKey
    restart_count: int | None
    start: float
    end: float | None
    job: int | None
    gpus: int

    def overlap_s(self, start: int, end: int) -> float:
        """Return for how many seconds the run may overlap the time from `start` to `end`.

        The clocks of nodes and of slurmctld may differ by 5 minutes, so the run is extended by 5 minutes at
        both ends. The result is 0 or less if there is no overlap.
        """
        until = float(end) if self.end is None else self.end + _CLOCK_SKEW_S
        return min(until, end) - max(self.start - _CLOCK_SKEW_S, start)


def choose_run(runs: Iterable[GroupedRun], restart_count: int, start: int, end: int) -> GroupedRun | None:
    """Return the run to which the energy of a job in a period belongs; None if no such run is known.

    The run must overlap the period, because Slurm counts job ids from the start again and another job may
    have the same id.

    Args:
        runs: runs with this job id.
        restart_count: restart count with which the energy was delivered.
        start: start of the period, Unix seconds.
        end: end of the period, Unix seconds.
    """
    near = [run for run in runs if run.overlap_s(start, end) > 0]
    recorded = [run for run in near if run.restart_count == restart_count]
    without_record = [run for run in near if run.restart_count is None]
    candidates = recorded or without_record
    return max(candidates, key=lambda run: (run.overlap_s(start, end), run.start), default=None)


def runs_of(connection: Connection, cluster: str, job_id: int) -> list[GroupedRun]:
    """Return the runs of one job.

    Each run states the attributes by which reports group runs, such as account and partition. A requeued
    job has several runs. The runs are derived from the stored records of the job and from Slurm's data
    about it. Their order is fixed.
    """
    return runs_of_jobs(connection, [(cluster, job_id)])[cluster, job_id]


def runs_of_jobs(
    connection: Connection, jobs: Collection[tuple[str, int]]
) -> dict[tuple[str, int], list[GroupedRun]]:
    """Return the known runs of several jobs, by cluster and job id; see `runs_of`.

    The runs of all jobs are read with few SQL statements. A busy server answers each statement late, and
    deliveries of records from the nodes must wait until the runs have been read.
    """
    facts, records = (_rows_by_job(connection, statement, jobs) for statement in (_FACTS, _RECORDS))
    return {job: _runs(connection, facts.get(job, ()), records.get(job, ())) for job in jobs}


def _runs(
    connection: Connection, facts_rows: Sequence[RowMapping], records: Sequence[RowMapping]
) -> list[GroupedRun]:
    facts = {row["id"]: row for row in facts_rows}
    runs = [_recorded_run(connection, group, facts.get(group[0]["job"])) for group in _by_run(records)]
    linked = {run.job for run in runs}
    return runs + [_run_of_facts(row) for row in facts.values() if row["id"] not in linked]


_jobs, _records = tables.jobs.c, tables.records.c
_CHUNK: Final = 200
"""Maximum number of jobs in a condition."""
_FACTS: Final = select(
    *(_jobs.id, _jobs.cluster, _jobs.start, _jobs.end, _jobs.account, _jobs.user, _jobs.partition),
    *(_jobs.qos, _jobs.allocated, _jobs.job_id),
).order_by(_jobs.submit)
_RECORDS: Final = (
    select(
        *(_records.id, _records.cluster, _records.node, _records.restart_count, _records.start),
        *(_records.end, _records.uid, _records.user, _records.account, _records.partition),
        *(_records.policy, _records.job, _records.job_id),
    )
    .where(_records.step == "")
    .order_by(_records.restart_count, _records.start, _records.node)
)
_BODY: Final = select(_records.body).where(_records.id == bindparam("row"))


def _rows_by_job(
    connection: Connection, statement: Any, jobs: Collection[tuple[str, int]]
) -> dict[tuple[str, int], list[RowMapping]]:
    columns = _records if statement is _RECORDS else _jobs
    wanted = sorted(jobs)
    rows: dict[tuple[str, int], list[RowMapping]] = {}
    for first in range(0, len(wanted), _CHUNK):
        chosen = tuple_(columns.cluster, columns.job_id).in_(wanted[first : first + _CHUNK])
        for row in connection.execute(statement.where(chosen)).mappings():
            rows.setdefault((row["cluster"], int(row["job_id"])), []).append(row)
    return rows


def _by_run(records: Sequence[RowMapping]) -> list[list[RowMapping]]:
    """Group a job's records by run. The records must be ordered by restart count and start."""
    groups: list[list[RowMapping]] = []
    by_job: dict[tuple[int, int], list[RowMapping]] = {}
    for record in records:
        if record["job"] is not None:
            key = (record["restart_count"], record["job"])
            if key not in by_job:
                groups.append(by_job.setdefault(key, []))
            by_job[key].append(record)
    last: list[RowMapping] = []
    for record in records:
        if record["job"] is None:
            same = last and last[0]["restart_count"] == record["restart_count"]
            if not same or record["start"] > max(one["end"] for one in last) + _CLOCK_SKEW_S:
                last = []
                groups.append(last)
            last.append(record)
    return groups


def _recorded_run(
    connection: Connection, records: Sequence[RowMapping], facts: RowMapping | None
) -> GroupedRun:
    first = min(records, key=lambda record: (record["node"], record["start"]))
    body = json.loads(connection.execute(_BODY, {"row": first["id"]}).scalar_one())
    allocated = parse_tres(facts["allocated"] if facts else None)
    gpus = allocated.gpus
    if gpus is None:
        gpus = len(body.get("gpus") or ()) * len(records)
    products = {
        str(device.get("product", ""))
        for device in body.get("devices") or ()
        if str(device.get("name", "")).startswith(_GPU_COMPONENT)
    }
    kind = ", ".join(sorted(products - {""})) or allocated.gpu_kind or (_UNKNOWN_GPU if gpus else "")
    key = GroupKey(
        first["cluster"],
        JOB,
        _name(_of(facts, "account"), first["account"]),
        _name(_of(facts, "user"), first["user"]),
        first["uid"],
        _name(_of(facts, "qos")),
        _name(_of(facts, "partition"), first["partition"]),
        _name(first["policy"]),
        str(body.get("tag") or ""),
        kind,
        allocated.cpus,
    )
    start, end = min(one["start"] for one in records), max(one["end"] for one in records)
    return GroupedRun(key, first["restart_count"], start, end, facts["id"] if facts else None, gpus)


def _run_of_facts(facts: RowMapping) -> GroupedRun:
    allocated = parse_tres(facts["allocated"])
    key = GroupKey(
        facts["cluster"],
        account=_name(facts["account"]),
        user=_name(facts["user"]),
        qos=_name(facts["qos"]),
        partition=_name(facts["partition"]),
        gpu_kind=allocated.gpu_kind or (_UNKNOWN_GPU if allocated.gpus else ""),
        cpus=allocated.cpus,
    )
    start = float("inf") if facts["start"] is None else facts["start"]
    return GroupedRun(key, None, start, facts["end"], facts["id"], allocated.gpus or 0)


def _of(facts: RowMapping | None, name: str) -> str | None:
    return facts[name] if facts is not None else None


def _name(*names: str | None) -> str:
    return next((name for name in names if name), "")[: tables.MAX_NAME]


class GroupIds:
    """Ids of the database rows of usage groups. A group is created when it is first used.

    A usage group is a combination of attributes, such as account and user, by which reports can group. The
    ids are cached. The cache stays valid, because groups are never deleted or changed. If a transaction is
    rolled back, a new group may be missing in the database; the cache must then be cleared.
    """

    def __init__(self) -> None:
        self._ids: dict[GroupKey, int] = {}

    def id_of(self, connection: Connection, key: GroupKey) -> int:
        """Return the row id of a group. Create the group if it is new."""
        row_id = self._ids.get(key)
        if row_id is None:
            groups = usage_tables.usage_groups
            row_id = connection.execute(
                select(groups.c.id).where(groups.c.digest == key.digest)
            ).scalar_one_or_none()
            if row_id is None:
                inserted = connection.execute(groups.insert().values(digest=key.digest, **key._asdict()))
                (row_id,) = inserted.inserted_primary_key or (None,)
            assert row_id is not None
            if len(self._ids) >= _MAX_CACHED:  # a site may give each job a different tag
                self._ids.clear()
            self._ids[key] = row_id
        return row_id
