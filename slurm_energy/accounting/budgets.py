"""Storage of power budgets in the database.

The module stores the power under each budget over time, the record of all changes, live limits (limits set
by an operator), and the upper bounds (ceilings) that budgets set on the nodes. Infinite limits are stored as
NULL, because JSON and SQL have no infinity.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Column, Connection, Row, delete, func, insert, or_, select

from slurm_energy.accounting.engine import transaction
from slurm_energy.accounting.records.row_pages import read_pages
from slurm_energy.accounting.schema.tables import budget_changes as _changes
from slurm_energy.accounting.schema.tables import budget_nodes as _nodes
from slurm_energy.accounting.schema.tables import budget_overrides as _overrides
from slurm_energy.accounting.schema.tables import budget_samples as _samples
from slurm_energy.accounting.upserts import insert_or_replace

FINE_SPAN_S: Final = 10.0
"""Span in seconds of a newly stored sample."""
COARSE_SPAN_S: Final = 300.0
"""Span in seconds of the samples into which old samples are merged."""
FINE_KEPT_S: Final = 7 * 86400.0
MAX_SAMPLES: Final = 5000
"""Maximum number of samples per budget in a response."""
_MERGED_AT_ONCE_S: Final = 86400.0
_PAGE_ROWS: Final = 5000


@dataclass(frozen=True, slots=True)
class BudgetSample:
    """Power of the nodes under one budget during a short time span.

    Powers are in watts. None means unknown; for a limit, None means that there was no limit.

    Attributes:
        budget: name of the budget.
        time: start of the span in Unix seconds.
        span_s: length of the span.
        limit_watts: lowest limit in the span.
        measured_watts, max_measured_watts: mean of the measured power in the span, and maximum of the 5 s
            means of the measured power.
        committed_watts: maximum over the span of the committed power, which is the power that the nodes
            cannot exceed at the power limits in force.
        capped_watts: mean power by which the limits reduced the power of devices.
        headroom_watts: power that new jobs could add without exceeding the limit; the minimum over the span.
        over_s: seconds during which the 5 s mean of the measured power was above the limit.
    """

    budget: str
    time: float
    span_s: float
    limit_watts: float | None
    measured_watts: float | None
    max_measured_watts: float | None
    committed_watts: float
    capped_watts: float
    headroom_watts: float | None
    over_s: float


@dataclass(frozen=True, slots=True)
class BudgetChange:
    """An entry of the audit trail of the power budgets.

    Attributes:
        time: Unix seconds.
        budget: name of the budget; None if the event does not concern one single budget.
        actor: login name of the user who made the change; None means senergyctld.
        kind: kind of event. `set` and `clear` mean that an operator set or cleared a live limit. The other
            kinds are `reload`, `signal`, `over`, `node` and `start`; `why` explains their events.
        why: the event in one line of text.
        details: further values that describe the event.
    """

    time: float
    budget: str | None
    actor: str | None
    kind: str
    why: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LimitOverride:
    """A live limit: a limit of a budget that an operator has set while senergyctld runs.

    Attributes:
        budget: name of the budget.
        watts: the limit in watts.
        end: Unix seconds at which the configured limit applies again; None means that the live limit applies
            until it is cleared.
        actor: login name of the operator.
        time: Unix seconds of the change.
        reason: reason that the operator gave; may be empty.
    """

    budget: str
    watts: float
    end: float | None
    actor: str
    time: float
    reason: str = ""


_SAMPLE_COLUMNS: Final[Sequence[Column[Any]]] = [
    _samples.c[one.name] for one in dataclasses.fields(BudgetSample)
]


def save_samples(connection: Connection, cluster: str, samples: Iterable[BudgetSample]) -> None:
    """Store samples of the budgets of `cluster` (Slurm's ClusterName) in one transaction."""
    with transaction(connection):
        insert_or_replace(connection, _samples, [_sample_row(cluster, sample) for sample in samples])


def _sample_row(cluster: str, sample: BudgetSample) -> dict[str, Any]:
    limits = {"limit_watts": _finite(sample.limit_watts), "headroom_watts": _finite(sample.headroom_watts)}
    return dataclasses.asdict(sample) | limits | {"cluster": cluster}


def samples(
    connection: Connection,
    cluster: str,
    budget: str,
    begin: float,
    end: float,
    limit: int = MAX_SAMPLES,
) -> list[BudgetSample]:
    """Return the samples of a budget, oldest first.

    If there are more than `limit` samples, neighbouring samples are merged.

    Args:
        connection: connection to the database.
        cluster: Slurm's ClusterName.
        budget: name of the budget.
        begin: Unix seconds of the first sample.
        end: Unix seconds; samples that begin at this time or later are not included.
        limit: maximum number of samples.
    """
    span_s = max(FINE_SPAN_S, (end - begin) / max(1, limit))
    span_s = math.ceil(span_s / FINE_SPAN_S) * FINE_SPAN_S
    columns = _samples.c
    query = (
        select(*_SAMPLE_COLUMNS)
        .where(columns.cluster == cluster, columns.budget == budget)
        .where(columns.time >= begin, columns.time < end)
    )
    stored = (BudgetSample(*row) for row in read_pages(connection, query, [columns.time], _PAGE_ROWS))
    groups = itertools.groupby(stored, lambda sample: sample.time // span_s)
    return [_merged([*group]) for _, group in groups]


def _merged(group: Sequence[BudgetSample]) -> BudgetSample:
    """Merge consecutive samples of a budget into one sample of the whole time span.

    The sums are computed in Python, because the result of a floating-point sum in SQL depends on the order
    of the rows.
    """
    first = group[0]
    if len(group) == 1:
        return first
    span_s = math.fsum(sample.span_s for sample in group)
    measured = [(s.measured_watts, s.span_s) for s in group if s.measured_watts is not None]
    measured_s = math.fsum(seconds for _, seconds in measured)
    return BudgetSample(
        budget=first.budget,
        time=first.time,
        span_s=span_s,
        limit_watts=_minimum(sample.limit_watts for sample in group),
        measured_watts=math.fsum(watts * s for watts, s in measured) / measured_s if measured_s else None,
        max_measured_watts=max(
            (s.max_measured_watts for s in group if s.max_measured_watts is not None), default=None
        ),
        committed_watts=max(sample.committed_watts for sample in group),
        capped_watts=math.fsum(s.capped_watts * s.span_s for s in group) / span_s if span_s else 0.0,
        headroom_watts=_minimum(sample.headroom_watts for sample in group),
        over_s=math.fsum(sample.over_s for sample in group),
    )


def names(connection: Connection, cluster: str) -> list[str]:
    """Return the names of all budgets that have samples, in alphabetical order."""
    query = select(_samples.c.budget).distinct().where(_samples.c.cluster == cluster)
    return list(connection.execute(query.order_by(_samples.c.budget)).scalars())


def merge_old_samples(connection: Connection, before: float) -> int:
    """Merge the samples of one day to longer intervals, to save space.

    The day is the oldest day before `before` (Unix seconds) whose samples are not yet merged.

    Returns:
        Number of samples that were replaced. If it is not 0, call again for the next day.
    """
    columns = _samples.c
    with transaction(connection):
        fine = select(func.min(columns.time)).where(columns.time < before, columns.span_s < COARSE_SPAN_S / 2)
        oldest = connection.execute(fine).scalar_one()
        if oldest is None:
            return 0
        # Whole coarse spans only, so that each is merged once.
        begin = oldest // COARSE_SPAN_S * COARSE_SPAN_S
        end = min(before // COARSE_SPAN_S * COARSE_SPAN_S, begin + _MERGED_AT_ONCE_S)
        if end <= begin:
            return 0
        merged = (columns.time >= begin, columns.time < end)
        rows = connection.execute(
            select(columns.cluster, *_SAMPLE_COLUMNS)
            .where(*merged)
            .order_by(columns.cluster, columns.budget, columns.time)
        ).fetchall()
        connection.execute(delete(_samples).where(*merged))
        groups = itertools.groupby(rows, lambda row: (row.cluster, row.budget, row.time // COARSE_SPAN_S))
        connection.execute(insert(_samples), [_coarse_row([*group]) for _, group in groups])
        return len(rows)


def _coarse_row(rows: Sequence[Row[*tuple[Any, ...]]]) -> dict[str, Any]:
    sample = _merged([BudgetSample(*row[1:]) for row in rows])
    # A merged span counts as coarse even if only a part of it was sampled.
    return _sample_row(rows[0].cluster, sample) | {"span_s": max(sample.span_s, COARSE_SPAN_S / 2)}


def save_changes(connection: Connection, cluster: str, changes: Iterable[BudgetChange]) -> None:
    """Store events of the budgets of `cluster` in one transaction."""
    with transaction(connection):
        _insert_changes(connection, cluster, changes)


def _insert_changes(connection: Connection, cluster: str, changes: Iterable[BudgetChange]) -> None:
    rows = [
        {**dataclasses.asdict(change), "cluster": cluster, "details": json.dumps(change.details)}
        for change in changes
    ]
    if rows:
        connection.execute(insert(_changes), rows)


def changes(
    connection: Connection, cluster: str, begin: float, end: float, limit: int = MAX_SAMPLES
) -> list[BudgetChange]:
    """Return the newest events between two times (Unix seconds), oldest first."""
    columns = _changes.c
    rows = connection.execute(
        select(*columns["time", "budget", "actor", "kind", "why", "details"])
        .where(columns.cluster == cluster, columns.time >= begin, columns.time < end)
        .order_by(columns.time.desc(), columns.id.desc())
        .limit(limit)
    ).fetchall()
    return [
        BudgetChange(time, budget, actor, kind, why, json.loads(details))
        for time, budget, actor, kind, why, details in reversed(rows)
    ]


def set_override(connection: Connection, cluster: str, override: LimitOverride, change: BudgetChange) -> None:
    """Store a live limit and its entry in the audit trail in one transaction."""
    with transaction(connection):
        insert_or_replace(connection, _overrides, [dataclasses.asdict(override) | {"cluster": cluster}])
        _insert_changes(connection, cluster, [change])


def clear_override(connection: Connection, cluster: str, budget: str, change: BudgetChange) -> bool:
    """Delete a live limit, which is a budget limit that an operator has set.

    The change is stored in the audit trail. Return False if there was no live limit.
    """
    columns = _overrides.c
    with transaction(connection):
        deleted = connection.execute(
            delete(_overrides).where(columns.cluster == cluster, columns.budget == budget)
        ).rowcount
        if deleted:
            _insert_changes(connection, cluster, [change])
        return bool(deleted)


def overrides(connection: Connection, cluster: str, now: float) -> dict[str, LimitOverride]:
    """Return the limits that operators have set (live limits), by budget.

    Only limits in force at the Unix time `now` are returned.
    """
    columns = _overrides.c
    rows = connection.execute(
        select(*(columns[one.name] for one in dataclasses.fields(LimitOverride)))
        .where(columns.cluster == cluster, or_(columns.end.is_(None), columns.end > now))
        .order_by(columns.budget)
    )
    return {row[0]: LimitOverride(*row) for row in rows}


def save_nodes(connection: Connection, cluster: str, time: float, bodies: Mapping[str, str]) -> None:
    """Store the state of nodes (JSON text by node) in one transaction.

    senergyctld calls this function before it sends a higher limit to a node. After a restart, senergyctld
    therefore never underestimates the power that the node may draw.
    """
    rows = [{"cluster": cluster, "node": node, "time": time, "body": body} for node, body in bodies.items()]
    with transaction(connection):
        insert_or_replace(connection, _nodes, rows)


def nodes(connection: Connection, cluster: str) -> dict[str, str]:
    """Return the stored states of the nodes of a cluster under power budgets.

    The result maps the name of a node to JSON text.
    """
    query = select(_nodes.c.node, _nodes.c.body).where(_nodes.c.cluster == cluster)
    return {row.node: row.body for row in connection.execute(query.order_by(_nodes.c.node))}


def forget_nodes(connection: Connection, cluster: str, names: Sequence[str]) -> None:
    """Delete the state of nodes that Slurm no longer has."""
    with transaction(connection):
        for name in names:
            connection.execute(delete(_nodes).where(_nodes.c.cluster == cluster, _nodes.c.node == name))


def drop_before(connection: Connection, before: float) -> int:
    """Delete old samples and events of power budgets, and limits by operators that ended long ago.

    A row is old if its time, or the end of the limit, is before `before` (Unix seconds).

    Returns:
        The number of deleted rows.
    """
    ended = (_samples.c.time < before, _changes.c.time < before, _overrides.c.end < before)
    with transaction(connection):
        return sum(
            connection.execute(delete(table).where(condition)).rowcount
            for table, condition in zip((_samples, _changes, _overrides), ended, strict=True)
        )


def _minimum(values: Iterable[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
