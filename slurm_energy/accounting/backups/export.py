"""Export of the database as flat tables for other programs: columns and rows of each table.

The name of a column ends with the unit of its values. Times are Unix seconds. None means unknown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import ColumnElement, Connection, Row, Select, select

from slurm_energy.accounting.records.row_pages import read_pages
from slurm_energy.accounting.schema import tables

_PAGE_ROWS: Final = 2000
_FACTS: Final = ("display_id", "name", "state", "submit", "time_limit_s")
_FIELDS: Final = ("policy", "tag", "model", "cpus", "mean_watts", "peak_watts", "seconds_above_cap")
_COMPONENTS: Final = ("cpu", "dram", "gpu", "other", "node")

ExportRows = Iterator[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class ExportColumn:
    """A column of an exported table.

    Attributes:
        name: name of the column, which ends with the unit.
        kind: type of the values: `text`, `integer` or `number`.
    """

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class ExportPeriod:
    """Selection of the rows to export.

    Attributes:
        since, until: Unix seconds. Rows with since <= time < until are exported; None means no limit.
        cluster: Slurm's ClusterName; None means all clusters.
    """

    since: float | None = None
    until: float | None = None
    cluster: str | None = None

    def condition(self, time: ColumnElement[Any], cluster: ColumnElement[str]) -> list[ColumnElement[bool]]:
        """Return the SQL conditions on a table's columns for the time and for the cluster."""
        conditions: list[ColumnElement[bool]] = []
        if self.since is not None:
            conditions.append(time >= self.since)
        if self.until is not None:
            conditions.append(time < self.until)
        if self.cluster is not None:
            conditions.append(cluster == self.cluster)
        return conditions


@dataclass(frozen=True, slots=True)
class ExportTable:
    """A table of the database that can be exported.

    Attributes:
        meaning: description of a row of the table, and of the time of the row. This time decides whether the
            row is in an exported period.
        columns: names and types of the columns.
        read: function that returns the rows of an `ExportPeriod` in a fixed order.
    """

    meaning: str
    columns: tuple[ExportColumn, ...]
    read: Callable[[Connection, ExportPeriod], ExportRows]


def _columns(text: str) -> tuple[ExportColumn, ...]:
    """Parse a list of columns and types, such as `node job_id:integer energy_joules:number`.

    A column without a type is text.
    """
    pairs = (word.partition(":") for word in text.split())
    return tuple(ExportColumn(name, kind or "text") for name, _, kind in pairs)


def _read_records(connection: Connection, period: ExportPeriod) -> ExportRows:
    records, jobs = tables.records, tables.jobs
    own = records.c[
        "id", "record_id", "cluster", "node", "job_id", "restart_count", "step", "uid", "user", "account",
        "partition", "start", "end", "energy_joules", "body",
    ]  # fmt: skip
    query: Select[Any] = (
        select(*own, *(jobs.c[name].label(f"job_{name}") for name in _FACTS))
        .select_from(records.outerjoin(jobs, jobs.c.id == records.c.job))
        .where(*period.condition(records.c.end, records.c.cluster))
    )
    for row in read_pages(connection, query, [records.c.end, records.c.id], _PAGE_ROWS):
        yield _record_row(row)


def _record_row(row: Row[Any]) -> Sequence[Any]:
    body = json.loads(row.body)
    energies = component_energies(body.get("components") or ())
    return (
        *(row.record_id, row.cluster, row.node, row.job_id, row.job_display_id, row.restart_count),
        *(row.step or None, row.job_name, row.user, row.uid, row.account, row.partition, row.job_state),
        *(row.job_submit, row.start, row.end, row.end - row.start, row.job_time_limit_s),
        *(body.get(name) for name in _FIELDS),
        *(len(body.get("gpus") or ()), row.energy_joules),
        *(energies.get(name) for name in _COMPONENTS),
    )


def component_energies(components: Sequence[dict[str, Any]]) -> dict[str, float | None]:
    """Return a record's energies in joules, by `cpu`, `dram`, `gpu` (all GPUs), `other` and `node`.

    A component that the record does not contain is missing in the result. The energy of a component is None
    if the energy of one of its devices is unknown.
    """
    devices: dict[str, list[float | None]] = {}
    for component in components:
        name = str(component.get("name")).partition("[")[0]
        devices.setdefault(name, []).append(component.get("energy_joules"))
    return {
        name: None if None in joules else math.fsum(value for value in joules if value is not None)
        for name, joules in devices.items()
    }


def _table_reader(
    table: Any, names: str, time: str, key: str
) -> Callable[[Connection, ExportPeriod], ExportRows]:
    """Return a function that reads the columns `names` of a table.

    The function returns the rows ordered by the columns `key`.
    """
    columns = [table.c[name] for name in names.split()]
    order = [table.c[name] for name in key.split()]
    hidden = [column for column in order if column not in columns]

    def read(connection: Connection, period: ExportPeriod) -> ExportRows:
        query = select(*columns, *hidden).where(*period.condition(table.c[time], table.c.cluster))
        for row in read_pages(connection, query, order, _PAGE_ROWS):
            yield tuple(row)[: len(columns)]

    return read


EXPORTS: Final = {
    "records": ExportTable(
        "one job or step in one run on one node, by the end of the record",
        _columns(
            "record_id cluster node job_id:integer job restart_count:integer step name user uid:integer"
            " account partition state submit_unix_s:number start_unix_s:number end_unix_s:number"
            " elapsed_s:number"
            " time_limit_s:number policy tag model cpus:integer mean_watts:number peak_watts:number"
            " above_cap_s:number gpus:integer energy_joules:number cpu_joules:number dram_joules:number"
            " gpu_joules:number other_joules:number node_joules:number"
        ),
        _read_records,
    ),
    "jobs": ExportTable(
        "one run of a job in Slurm's accounting, by its submission",
        _columns(
            "cluster job_id:integer job name user account partition state submit_unix_s:number"
            " start_unix_s:number end_unix_s:number elapsed_s:number time_limit_s:number nodes:integer"
            " requested"
        ),
        _table_reader(
            tables.jobs,
            "cluster job_id display_id name user account partition state submit start end elapsed_s"
            " time_limit_s nodes requested",
            "submit",
            "submit id",
        ),
    ),
    "periods": ExportTable(
        "energy of a job, idle or unattributed on one node in one period, by its start",
        _columns(
            "cluster node start_unix_s:integer end_unix_s:integer kind job_id:integer restart_count:integer"
            " uid:integer cpu_microjoules:integer dram_microjoules:integer gpu_microjoules:integer"
            " other_microjoules:integer total_microjoules:integer"
        ),
        _table_reader(
            tables.periods,
            "cluster node start end kind job_id restart_count uid cpu_uj dram_uj gpu_uj other_uj total_uj",
            "start",
            "cluster node start kind job_id restart_count",
        ),
    ),
    "budgets": ExportTable(
        "power under one budget in a span of time, by its begin",
        _columns(
            "cluster budget begin_unix_s:number span_s:number limit_watts:number measured_watts:number"
            " max_measured_watts:number committed_watts:number capped_watts:number headroom_watts:number"
            " over_s:number"
        ),
        _table_reader(
            tables.budget_samples,
            "cluster budget time span_s limit_watts measured_watts max_measured_watts committed_watts"
            " capped_watts headroom_watts over_s",
            "time",
            "cluster budget time",
        ),
    ),
}
"""The tables that can be exported, by name."""
