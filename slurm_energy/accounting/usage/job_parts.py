"""Queries for the energy of jobs and steps by time, from which their emissions and cost are computed."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, groupby
from operator import itemgetter
from typing import Any, Final

from sqlalchemy import Connection, Row, select

from slurm_energy.accounting.records.periods import JOB
from slurm_energy.accounting.records.record_conditions import is_visible, r
from slurm_energy.accounting.records.record_selection import Visibility
from slurm_energy.accounting.schema.tables import periods
from slurm_energy.errors import UnavailableError
from slurm_energy.grid.energy_parts import KnownPart, clip, divide, merge_by_minute

_JOULES_PER_MICROJOULE: Final = 1e-6
_CHUNK: Final = 200
"""Maximum number of values in a condition."""

LIMIT_S: Final = 20.0
"""Time after which no further jobs of a request are read."""
_JOBS: Final = 50
"""Maximum number of jobs whose records are read with one query."""
_MAX_NODE_HOURS: Final = 100_000
"""Maximum number of hours of nodes whose periods are read with one query, except for a single job."""
_MAX_PARTS: Final = 500_000
"""Maximum number of parts in a response."""
_HOUR_S: Final = 3600.0

_Job = tuple[str, int]
"""Cluster and id of a job."""
_NodeRun = tuple[str, int]
"""A run of a job on one node: node and restart count."""
_JobRows = Mapping[int, Sequence[Row[Any]]]
"""Records by id of the job."""


def parts_of_records(
    connection: Connection,
    record_ids: Collection[str],
    visible: Visibility | None,
    limit_s: float = LIMIT_S,
) -> dict[str, list[KnownPart]]:
    """Return the energy of jobs and steps by time, on all their nodes together.

    Args:
        connection: connection to the database.
        record_ids: for each job or step, the id of one of its records. Further ids of the same job or step
            are ignored.
        visible: records that the caller may see; None means all.
        limit_s: time after which no further jobs are read. A request for one job is always completed.

    Returns:
        By record id, the parts into which the energy is divided, in ascending order of time. A record id is
        absent if the record is unknown or hidden, or if the energy is not divided into several parts.

    Raises:
        UnavailableError: jobs are left after `limit_s`, or the parts are too many.
    """
    check_time = partial(_check_time, time.monotonic() + limit_s, limit_s)
    by_job: dict[_Job, list[Row[Any]]] = defaultdict(list)
    for row in _requested(connection, sorted(set(record_ids)), visible):
        by_job[row.cluster, row.job_id].append(row)
    parts: dict[str, list[KnownPart]] = {}
    count = 0
    for position, (cluster, requested) in enumerate(_groups(by_job)):
        if position:
            check_time()
        for record_id, some in _parts_of_jobs(connection, cluster, requested, check_time):
            if len(some) > 1:
                parts[record_id] = some
                count += len(some)
            if count > _MAX_PARTS:
                raise UnavailableError("query", f"more than {_MAX_PARTS} parts", "ask for fewer jobs")
    return parts


def _check_time(end_s: float, limit_s: float) -> None:
    if time.monotonic() >= end_s:
        raise UnavailableError("query", f"it takes longer than {limit_s:g} s", "ask for fewer jobs")


def _requested(connection: Connection, ids: Sequence[str], visible: Visibility | None) -> Iterator[Row[Any]]:
    names = ("record_id", "cluster", "job_id", "restart_count", "step", "start", "end")
    for first in range(0, len(ids), _CHUNK):
        query = select(*(r.c[name] for name in names)).where(r.c.record_id.in_(ids[first : first + _CHUNK]))
        if visible is not None:
            query = query.where(is_visible(visible))
        yield from connection.execute(query.order_by(r.c.record_id))


def _groups(by_job: Mapping[_Job, list[Row[Any]]]) -> Iterator[tuple[str, _JobRows]]:
    """Yield groups of jobs of one cluster whose records are read together.

    The jobs are in the order of their starts. The query for the records of a group then covers a short time.
    """
    order = sorted(by_job, key=lambda job: (job[0], min(row.start for row in by_job[job])))
    for cluster, of_cluster in groupby(order, key=itemgetter(0)):
        jobs = list(of_cluster)
        for first in range(0, len(jobs), _JOBS):
            yield cluster, {job[1]: by_job[job] for job in jobs[first : first + _JOBS]}


def _parts_of_jobs(
    connection: Connection, cluster: str, requested: _JobRows, check_time: Callable[[], None]
) -> Iterator[tuple[str, list[KnownPart]]]:
    """Yield record id and energy by time for each requested run of some jobs and of their steps.

    `check_time` is called before the periods of further jobs are read. It raises an error if the time limit
    of the request has passed.
    """
    measured = _measured_records(connection, cluster, requested)
    for position, jobs in enumerate(_batches(measured)):
        if position:
            check_time()
        energies = _period_energies(connection, cluster, jobs, measured)
        for job_id in jobs:
            yield from _parts_of_job(requested[job_id], measured[job_id], energies[job_id])


def _batches(measured: _JobRows) -> Iterator[list[int]]:
    """Divide the jobs into batches whose periods are read together. Yield the job ids of each batch.

    The size of a batch is limited, to limit the number of rows in memory.
    """
    jobs: list[int] = []
    hours = 0.0
    for job_id, rows in measured.items():
        of_job = sum((row.end - row.start) / _HOUR_S + 2 for row in rows if not row.step)
        if jobs and hours + of_job > _MAX_NODE_HOURS:
            yield jobs
            jobs, hours = [], 0.0
        jobs.append(job_id)
        hours += of_job
    if jobs:
        yield jobs


def _parts_of_job(
    requested: Sequence[Row[Any]],
    measured: Sequence[Row[Any]],
    energies: Mapping[_NodeRun, Sequence[KnownPart]],
) -> Iterator[tuple[str, list[KnownPart]]]:
    """Yield record id and energy by time for each requested run of a job and of its steps.

    The energy is that of the run or step on all nodes. Only records whose time overlaps the time of the
    requested record count, because Slurm may use a job id again.
    """
    whole: dict[_NodeRun, list[KnownPart]] = defaultdict(list)
    by_step: dict[tuple[str, int], list[Row[Any]]] = defaultdict(list)
    for row in measured:
        by_step[row.step, row.restart_count].append(row)
        if not row.step:
            of_node = energies.get((row.node, row.restart_count), ())
            whole[row.node, row.restart_count] += divide(row.start, row.end, row.energy_joules, of_node)
    answered: dict[tuple[str, int], list[Row[Any]]] = defaultdict(list)
    for one in requested:
        key = one.step, one.restart_count
        if any(_overlap(row, one) for row in answered[key]):
            continue
        answered[key].append(one)
        divided = [
            clip(whole.get((row.node, row.restart_count), ()), row.start, row.end, row.energy_joules)
            for row in by_step[key]
            if _overlap(row, one)
        ]
        yield one.record_id, merge_by_minute(chain.from_iterable(divided))


def _overlap(one: Row[Any], other: Row[Any]) -> bool:
    return bool(one.start <= other.end and one.end >= other.start)


def _measured_records(connection: Connection, cluster: str, requested: _JobRows) -> _JobRows:
    """Return the records of jobs and their requested steps whose energy is known.

    The records of each job are in the order of their starts. Only records whose time overlaps the time of
    the requested records are read.
    """
    names = ("job_id", "node", "restart_count", "step", "start", "end", "energy_joules")
    every = [row for rows in requested.values() for row in rows]
    query = select(*(r.c[name] for name in names)).where(
        r.c.cluster == cluster,
        r.c.job_id.in_(sorted(requested)),
        r.c.step.in_(sorted({row.step for row in every} | {""})),
        r.c.start <= max(row.end for row in every),
        r.c.end >= min(row.start for row in every),
        r.c.energy_joules.is_not(None),
    )
    measured: dict[int, list[Row[Any]]] = {job_id: [] for job_id in requested}
    for row in connection.execute(query.order_by(r.c.start)):
        measured[row.job_id].append(row)
    return measured


def _period_energies(
    connection: Connection, cluster: str, jobs: Sequence[int], measured: _JobRows
) -> dict[int, dict[_NodeRun, list[KnownPart]]]:
    """Return the energy of jobs by period, for each job and for each of its nodes and runs.

    Only periods within the times of the measured records are read.
    """
    energies: dict[int, dict[_NodeRun, list[KnownPart]]] = {job: defaultdict(list) for job in jobs}
    whole = [row for job in jobs for row in measured[job] if not row.step]
    if not whole:
        return energies
    columns = periods.c
    names = ("job_id", "node", "restart_count", "start", "end", "total_uj")
    query = select(*(columns[name] for name in names)).where(
        columns.cluster == cluster,
        columns.job_id.in_(jobs),
        columns.kind == JOB,
        columns.start < max(row.end for row in whole),
        columns.end > min(row.start for row in whole),
    )
    for job_id, node, restart_count, start, end, microjoules in connection.execute(query):
        part = float(start), float(end), int(microjoules) * _JOULES_PER_MICROJOULE
        energies[job_id][node, restart_count].append(part)
    return energies
