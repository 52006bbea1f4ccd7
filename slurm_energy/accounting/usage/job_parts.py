"""Queries for the energy of jobs and steps by time, from which their emissions and cost are computed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import chain
from typing import Any, Final

from sqlalchemy import Connection, Row, select

from slurm_energy.accounting.records.periods import JOB
from slurm_energy.accounting.records.record_conditions import is_visible, r
from slurm_energy.accounting.records.record_selection import Visibility
from slurm_energy.accounting.schema.tables import periods
from slurm_energy.grid.energy_parts import KnownPart, clip, divide, merge

_JOULES_PER_MICROJOULE: Final = 1e-6
_CHUNK: Final = 200
"""Maximum number of values in a condition."""

_NodeRun = tuple[str, int]
"""A run of a job on one node: node and restart count."""


def parts_of_records(
    connection: Connection, record_ids: Collection[str], visible: Visibility | None
) -> dict[str, list[KnownPart]]:
    """Return the energy of jobs and steps by time, on all their nodes together.

    Args:
        connection: connection to the database.
        record_ids: for each job or step, the id of one of its records. Further ids of the same job or step
            are ignored.
        visible: records that the caller may see; None means all.

    Returns:
        The parts by record id, in ascending order. A record id is absent if the record is unknown or hidden,
        or if no division by time is known.
    """
    by_job: dict[tuple[str, int], list[Row[Any]]] = defaultdict(list)
    for row in _requested(connection, sorted(set(record_ids)), visible):
        by_job[row.cluster, row.job_id].append(row)
    parts: dict[str, list[KnownPart]] = {}
    for (cluster, job_id), requested in by_job.items():  # job by job, which bounds the rows in memory
        of_job = _parts_of_job(connection, cluster, job_id, requested)
        parts |= {record_id: some for record_id, some in of_job if len(some) > 1}
    return parts


def _requested(connection: Connection, ids: Sequence[str], visible: Visibility | None) -> Iterator[Row[Any]]:
    names = ("record_id", "cluster", "job_id", "restart_count", "step", "start", "end")
    for first in range(0, len(ids), _CHUNK):
        query = select(*(r.c[name] for name in names)).where(r.c.record_id.in_(ids[first : first + _CHUNK]))
        if visible is not None:
            query = query.where(is_visible(visible))
        yield from connection.execute(query.order_by(r.c.record_id))


def _parts_of_job(
    connection: Connection, cluster: str, job_id: int, requested: Sequence[Row[Any]]
) -> Iterator[tuple[str, list[KnownPart]]]:
    """Yield a record id and the parts for each requested run of a job and of its steps.

    The parts include the records of the run or step on all nodes. The times of these records must overlap the
    time of the requested record, because Slurm may use a job id again.
    """
    measured = _measured_records(connection, cluster, job_id, {row.step for row in requested} | {""})
    energies = _period_energies(connection, cluster, job_id)
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
        yield one.record_id, merge(chain.from_iterable(divided))


def _overlap(one: Row[Any], other: Row[Any]) -> bool:
    return bool(one.start <= other.end and one.end >= other.start)


def _measured_records(
    connection: Connection, cluster: str, job_id: int, steps: Collection[str]
) -> Sequence[Row[Any]]:
    """Return the records of some steps of a job whose energy is known, in the order of their starts.

    An empty step means the whole job.
    """
    names = ("node", "restart_count", "step", "start", "end", "energy_joules")
    query = select(*(r.c[name] for name in names)).where(
        r.c.cluster == cluster,
        r.c.job_id == job_id,
        r.c.step.in_(sorted(steps)),
        r.c.energy_joules.is_not(None),
    )
    return connection.execute(query.order_by(r.c.start)).fetchall()


def _period_energies(connection: Connection, cluster: str, job_id: int) -> dict[_NodeRun, list[KnownPart]]:
    """Return the energy of a job by period, for each node and run."""
    columns = periods.c
    query = select(columns.node, columns.restart_count, columns.start, columns.end, columns.total_uj).where(
        columns.cluster == cluster, columns.job_id == job_id, columns.kind == JOB
    )
    energies: dict[_NodeRun, list[KnownPart]] = defaultdict(list)
    for node, restart_count, start, end, microjoules in connection.execute(query):
        part = float(start), float(end), int(microjoules) * _JOULES_PER_MICROJOULE
        energies[node, restart_count].append(part)
    return energies
