"""Sums of energy, CPU time and GPU time by period and group, for `senergy report`.

A group consists of the job runs with the same account, user, partition and similar attributes (`groups`).
The sums are integers. They always equal the sums over the rows that have been counted, in whatever order
periods, records and job facts (Slurm's data about jobs) arrived. The work consists of three parts:

- A row of the table `periods` that has a `usage_group` is counted in the sums of that group.
  The rows of one node period are counted together, in the order of `node_periods.id`.
- A row of the table `usage_runs` is counted as CPU and GPU time in the hours of its run.
- Jobs whose records or facts changed are noted in the table `usage_changed_jobs`. Their rows
  then move to other groups.

`UsageRollup.advance` does a limited amount of this work in one transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from sqlalchemy import (
    Connection,
    Row,
    RowMapping,
    and_,
    bindparam,
    delete,
    func,
    select,
    tuple_,
    update,
)

from slurm_energy.accounting.engine import transaction
from slurm_energy.accounting.schema import tables, usage_tables
from slurm_energy.accounting.upserts import insert_missing, insert_or_replace
from slurm_energy.accounting.usage.groups import (
    COVERAGE,
    JOB,
    OFF,
    OFF_UNMEASURED,
    GroupedRun,
    GroupIds,
    GroupKey,
    choose_run,
    runs_of,
    runs_of_jobs,
)
from slurm_energy.accounting.usage.run_time import RunTime
from slurm_energy.accounting.usage.statements import (
    COUNTED,
    COUNTED_RUN,
    DELETE_CHANGED,
    DELETE_KNOWN,
    ENERGIES,
    TIMES_OF_JOB,
)
from slurm_energy.accounting.usage.sum_changes import HOUR_S, SumChanges, Sums

MAX_RUN_S: Final = 400 * 86400
"""Maximum length in seconds of a run whose CPU time is counted. A longer run has a wrong time."""
UNKNOWN_KEPT_S: Final = 8 * 86400.0
"""Seconds for which jobs without facts stay noted. Queries to Slurm about these jobs end earlier."""
_UNENDED_STATES: Final = ("RUNNING", "SUSPENDED")
_MAX_READ_S: Final = 10
"""Seconds that may pass between Slurm's measurement of an elapsed time and the time of its arrival."""
_PERIODS_AT_ONCE: Final = 100
_JOBS_AT_ONCE: Final = 20
_BUCKETS_AT_ONCE: Final = 200
_CHUNK: Final = 200
"""Maximum number of keys in a condition."""
LAST_PERIOD: Final = "node_period"
"""Name of the row of `usage_state` with the id of the last counted row of `node_periods`."""
_LONGEST: Final = "longest_s"

_PERIOD_KEY: Final = tuple(column.name for column in tables.periods.primary_key)
# Statements for many rows at once: their construction would take longer than their execution.
_SET_GROUP: Final = (
    update(tables.periods)
    .where(*(tables.periods.c[name] == bindparam(f"of_{name}") for name in _PERIOD_KEY))
    .values(usage_group=bindparam("group"))
)


class UsageRollup:
    """Writer of the sums of energy and time by group. Only the writing thread may use this class."""

    def __init__(self) -> None:
        self._groups = GroupIds()

    def advance(self, connection: Connection, now: float) -> bool:
        """Add a limited amount of new data to the sums of usage. Return whether more data remain.

        Args:
            connection: connection of the writing thread.
            now: current time, Unix seconds.
        """
        try:
            with transaction(connection):
                more_jobs = self._move_changed_jobs(connection)
                more_periods = self._count_periods(connection, now)
        except BaseException:
            self._groups = GroupIds()  # groups that this transaction created no longer exist
            raise
        return more_jobs or more_periods

    def _count_periods(self, connection: Connection, now: float) -> bool:
        last = _state(connection, LAST_PERIOD)
        nodes, rows = tables.node_periods.c, tables.periods.c
        new = connection.execute(
            select(nodes.id, nodes.cluster, nodes.node, nodes.start, nodes.end)
            .where(nodes.id > last)
            .order_by(nodes.id)
            .limit(_PERIODS_AT_ONCE)
        ).all()
        if not new:
            return False
        same = and_(rows.cluster == nodes.cluster, rows.node == nodes.node, rows.start == nodes.start)
        energies = connection.execute(
            select(*tables.periods.c)
            .select_from(tables.node_periods.join(tables.periods, same))
            .where(nodes.id > last, nodes.id <= new[-1].id)
            .order_by(*tables.periods.primary_key.columns)
        ).all()
        deltas = SumChanges()
        unknown = usage_tables.usage_unknown_jobs
        connection.execute(delete(unknown).where(unknown.c.since < now - UNKNOWN_KEPT_S))
        self._count_energies(connection, energies, deltas, now)
        unmeasured = {(row.cluster, row.node, row.start) for row in energies if _is_unmeasured(row)}
        for period in new:
            if (period.cluster, period.node, period.start) in unmeasured:
                continue
            group = self._groups.id_of(connection, GroupKey(period.cluster, COVERAGE))
            deltas.add((period.start, period.end, group), {"node_seconds": period.end - period.start})
        _note_nodes(connection, new)
        deltas.apply(connection)
        _set_state(connection, LAST_PERIOD, new[-1].id)
        longest = max(period.end - period.start for period in new)
        if longest > _state(connection, _LONGEST):
            _set_state(connection, _LONGEST, longest)
        return len(new) == _PERIODS_AT_ONCE

    def _count_energies(
        self, connection: Connection, rows: Sequence[Row[Any]], deltas: SumChanges, now: float
    ) -> None:
        runs = runs_of_jobs(connection, {(row.cluster, row.job_id) for row in rows if row.kind == JOB})
        unknown, counted = [], []
        for row in rows:
            if row.kind == JOB:
                run = choose_run(runs[row.cluster, row.job_id], row.restart_count, row.start, row.end)
                if run is None or run.job is None:
                    unknown.append(_unknown_job(row, now))
                key = _key_of(run, row.cluster, row.uid)
            else:
                key = GroupKey(row.cluster, OFF_UNMEASURED if _is_unmeasured(row) else row.kind)
            group = self._groups.id_of(connection, key)
            sums = _energies(row._mapping)
            if row.kind == OFF:
                sums |= {"node_seconds": row.end - row.start}
            deltas.add((row.start, row.end, group), sums)
            counted.append({f"of_{name}": row._mapping[name] for name in _PERIOD_KEY} | {"group": group})
        insert_missing(connection, usage_tables.usage_unknown_jobs, unknown)
        if counted:
            connection.execute(_SET_GROUP, counted)

    def _move_changed_jobs(self, connection: Connection) -> bool:
        changed = usage_tables.usage_changed_jobs
        jobs = connection.execute(
            select(changed.c.cluster, changed.c.job_id)
            .order_by(changed.c.cluster, changed.c.job_id)
            .limit(_JOBS_AT_ONCE)
        ).all()
        deltas, buckets = SumChanges(), 0
        for cluster, job_id in jobs:
            runs = runs_of(connection, cluster, job_id)
            buckets += self._move_energies(connection, cluster, job_id, runs, deltas)
            if buckets > _BUCKETS_AT_ONCE:
                break  # the job stays noted; the next call moves the rest
            self._move_times(connection, runs, deltas)
            connection.execute(DELETE_CHANGED, {"of_cluster": cluster, "of_job": job_id})
        deltas.apply(connection)
        return len(jobs) == _JOBS_AT_ONCE or buckets > _BUCKETS_AT_ONCE

    def _move_energies(
        self,
        connection: Connection,
        cluster: str,
        job_id: int,
        runs: Sequence[GroupedRun],
        deltas: SumChanges,
    ) -> int:
        """Move the energy of a job between the sums of the usage report. Return the number of moves.

        Each sum belongs to a group of jobs with the same account, user and similar attributes. New facts
        about the job may change its group. Energy that was counted in the old group is moved to the new
        group.
        """
        moved, unknown = 0, False
        for row in _counted(connection, cluster, job_id):
            run = choose_run(runs, row.restart_count, row.start, row.end)
            unknown |= run is None or run.job is None
            group = self._groups.id_of(connection, _key_of(run, cluster, row.uid))
            if group == row.usage_group:
                continue
            moved += 1
            if moved > _BUCKETS_AT_ONCE:
                break
            sums = {name: int(row._mapping[name] or 0) for name in _ENERGY_COLUMNS}
            deltas.add((row.start, row.end, row.usage_group), {name: -sums[name] for name in sums})
            deltas.add((row.start, row.end, group), sums)
            connection.execute(
                update(tables.periods)
                .where(
                    *_of_job(cluster, job_id), *_equal(row, ("restart_count", "start", "end", "usage_group"))
                )
                .values(usage_group=group)
            )
        if not unknown and moved <= _BUCKETS_AT_ONCE:
            connection.execute(DELETE_KNOWN, {"of_cluster": cluster, "of_job": job_id})
        return moved

    def _move_times(self, connection: Connection, runs: Sequence[GroupedRun], deltas: SumChanges) -> None:
        """Correct the counted CPU and GPU time of a job's runs after its facts have changed.

        The time moves to the present groups (account, user and so on) and hours of the runs.
        """
        table = usage_tables.usage_runs
        for job, run in {run.job: run for run in reversed(runs) if run.job is not None}.items():
            before = connection.execute(COUNTED_RUN, {"of_job": job}).one_or_none()
            counted = None if before is None else RunTime(*before)
            after = self._time_of(connection, job, run)
            if after == counted:
                continue
            if counted is not None:
                counted.add_hours(deltas, -1)
                connection.execute(delete(table).where(table.c.job == job))
            if after is not None:
                after.add_hours(deltas, 1)
                connection.execute(table.insert().values(job=job, **after._asdict()))

    def _time_of(self, connection: Connection, job: int, run: GroupedRun) -> RunTime | None:
        """Return the time range in which a job's run counts for the usage reports.

        A running or suspended job counts up to the time at which its data were last read from Slurm's
        accounting. The result is None if the run has not begun or its times are wrong.
        """
        start, end, updated, state, elapsed_s = connection.execute(TIMES_OF_JOB, {"of_job": job}).one()
        if start is None or (end is None and not state.startswith(_UNENDED_STATES)):
            return None
        until = int(updated if end is None else end)
        length_s = until - int(start)
        if not 0 <= length_s <= MAX_RUN_S:
            return None
        suspended_s = 0 if elapsed_s is None else min(length_s, max(0, length_s - int(elapsed_s)))
        if end is None and suspended_s <= _MAX_READ_S:
            suspended_s = 0
        group = self._groups.id_of(connection, run.key)
        return RunTime(group, int(start), until, run.key.cpus or 0, run.gpus, suspended_s)


_ENERGY_COLUMNS: Final = (
    "total_uj",
    *(f"{name}_uj" for name in ENERGIES),
    *(f"{n}_rows" for n in ENERGIES),
)


def _is_unmeasured(row: Row[Any]) -> bool:
    """Return whether a row of `periods` is about a node that was off and whose energy is unknown."""
    return bool(row.kind == OFF and row.other_uj is None)


def note_changed_jobs(connection: Connection, jobs: Iterable[tuple[str, int]]) -> None:
    """Note the jobs whose records or facts the current transaction changes, for the sums of usage.

    Each job is a pair of cluster and job id.
    """
    rows = [{"cluster": cluster, "job_id": job_id} for cluster, job_id in sorted(set(jobs))]
    insert_missing(connection, usage_tables.usage_changed_jobs, rows)


def longest_period_s(connection: Connection) -> int:
    """Return the length in seconds of the longest period that the stored sums of energy contain.

    A period is a time range with the energy of one node. The result is at least one hour.
    """
    return max(HOUR_S, _state(connection, _LONGEST))


def uncounted_periods(connection: Connection) -> int:
    """Return the number of delivered periods that the sums for usage reports do not contain yet.

    A period is the energy of one node in a time span.
    """
    nodes = tables.node_periods.c
    statement = select(func.count()).where(nodes.id > _state(connection, LAST_PERIOD))
    return int(connection.execute(statement).scalar_one())


def _key_of(run: GroupedRun | None, cluster: str, uid: int) -> GroupKey:
    return GroupKey(cluster, JOB, uid=uid) if run is None else run.key._replace(uid=uid)


def _energies(row: RowMapping) -> Sums:
    """Return the known energies in a row of the table `periods`, for addition to the sums of usage.

    For each component with known energy, the result has two entries: the energy, and the number 1. The
    number is added to the count of rows in which the energy of the component is known.
    """
    sums: Sums = {"total_uj": row["total_uj"]}
    for name in ENERGIES:
        value = row[f"{name}_uj"]
        if value is not None:
            sums |= {f"{name}_uj": value, f"{name}_rows": 1}
    return sums


def _counted(connection: Connection, cluster: str, job_id: int) -> Sequence[Row[Any]]:
    """Return the energy of a job that is already included in the usage sums.

    The result has one row per run, period and group. A group is a combination of user, account and so on.
    """
    return connection.execute(COUNTED, {"of_cluster": cluster, "of_job": job_id}).all()


def _of_job(cluster: str, job_id: int) -> tuple[Any, ...]:
    rows = tables.periods.c
    return rows.cluster == cluster, rows.job_id == job_id, rows.kind == JOB


def _equal(row: Row[Any], names: Iterable[str]) -> tuple[Any, ...]:
    return tuple(tables.periods.c[name] == row._mapping[name] for name in names)


def _unknown_job(row: Row[Any], now: float) -> dict[str, Any]:
    """Return the table row for a job whose facts are not yet known.

    The row makes senergyctld query Slurm about the job while the job runs.
    """
    names = ("cluster", "job_id", "restart_count", "start", "end")
    return {name: row._mapping[name] for name in names} | {"since": now}


def _note_nodes(connection: Connection, periods: Iterable[Any]) -> None:
    """Store, for each node, from when to when energy of the node is known.

    The stored times are the earliest start and the latest end of the node's periods.
    """
    new: dict[tuple[str, str], tuple[int, int]] = {}
    for period in periods:
        start, end = new.get((period.cluster, period.node), (period.start, period.end))
        new[period.cluster, period.node] = min(start, period.start), max(end, period.end)
    table, keys, noted = usage_tables.usage_nodes, sorted(new), {}
    for first in range(0, len(keys), _CHUNK):
        chosen = tuple_(table.c.cluster, table.c.node).in_(keys[first : first + _CHUNK])
        for cluster, node, start, end in connection.execute(select(*table.c).where(chosen)):
            noted[cluster, node] = int(start), int(end)
    rows = []
    for key, (start, end) in new.items():
        before = noted.get(key, (start, end))
        times = min(start, before[0]), max(end, before[1])
        if times != noted.get(key):
            rows.append(dict(zip(("cluster", "node", "start", "end"), (*key, *times), strict=True)))
    insert_or_replace(connection, table, rows)


def _state(connection: Connection, name: str) -> int:
    table = usage_tables.usage_state
    value = connection.execute(select(table.c.value).where(table.c.name == name)).scalar_one_or_none()
    return int(value or 0)


def _set_state(connection: Connection, name: str, value: int) -> None:
    table = usage_tables.usage_state
    if connection.execute(update(table).where(table.c.name == name).values(value=value)).rowcount == 0:
        connection.execute(table.insert().values(name=name, value=value))
