"""Power budgets in the database: power over time, changes for audit, live limits, and ceilings of nodes.

Infinite limits are stored as NULL, because JSON and SQL have no infinity.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Connection

from slurm_energy.accounting.engine import execute_many, transaction

FINE_SPAN_S: Final = 10.0
"""Span of a sample when it is stored."""
COARSE_SPAN_S: Final = 300.0
"""Span of the samples into which old samples are merged."""
FINE_KEPT_S: Final = 7 * 86400.0
MAX_SAMPLES: Final = 5000
"""Maximum number of samples per budget in a response."""
_MERGED_AT_ONCE_S: Final = 86400.0


@dataclass(frozen=True, slots=True)
class BudgetSample:
    """Power under one budget during a short span of time. Powers are watts; None: unknown, or no limit.

    Attributes:
        budget: name of the budget.
        time: Unix seconds of the begin.
        span_s: length of the span.
        limit_watts: lowest limit.
        measured_watts, max_measured_watts: mean of the measured power, and maximum of its mean over 5 s.
        committed_watts: maximum of the committed power.
        capped_watts: mean power taken by limits.
        headroom_watts: lowest headroom.
        over_s: seconds during which the measured power, as mean over 5 s, was above the limit.
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
    """An event of the budgets, for the audit trail.

    Attributes:
        time: Unix seconds.
        budget: name of the budget; None: the event concerns no single budget.
        actor: login name of the user who made the change; None: senergyctld.
        kind: `set`, `clear`, `reload`, `signal`, `over`, `node` or `start`.
        why: the event in one line of text.
        details: further values.
    """

    time: float
    budget: str | None
    actor: str | None
    kind: str
    why: str
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LimitOverride:
    """A limit that an administrator has set while senergyctld runs.

    Attributes:
        budget: name of the budget.
        watts: the limit.
        end: Unix seconds after which the configured limit applies again; None: until it is cleared.
        actor: login name of the administrator.
        time: Unix seconds of the change.
        reason: text of the administrator; may be empty.
    """

    budget: str
    watts: float
    end: float | None
    actor: str
    time: float
    reason: str = ""


def save_samples(connection: Connection, cluster: str, samples: Iterable[BudgetSample]) -> None:
    """Store samples of the budgets of `cluster` (Slurm's ClusterName) in one transaction."""
    rows = [
        (
            *(cluster, s.budget, s.time, s.span_s, _finite(s.limit_watts), s.measured_watts),
            *(s.max_measured_watts, s.committed_watts, s.capped_watts, _finite(s.headroom_watts), s.over_s),
        )
        for s in samples
    ]
    with transaction(connection):
        execute_many(
            connection,
            f"INSERT OR REPLACE INTO budget_samples VALUES ({','.join('?' * 11)})",
            rows,
        )


def samples(
    connection: Connection,
    cluster: str,
    budget: str,
    begin: float,
    end: float,
    limit: int = MAX_SAMPLES,
) -> list[BudgetSample]:
    """Return the samples of a budget, oldest first, merged so that there are at most `limit`.

    Args:
        connection: connection to the database.
        cluster: Slurm's ClusterName.
        budget: name of the budget.
        begin: Unix seconds of the first sample.
        end: Unix seconds; samples that begin then are not included.
        limit: maximum number of samples.
    """
    span_s = max(FINE_SPAN_S, (end - begin) / max(1, limit))
    span_s = math.ceil(span_s / FINE_SPAN_S) * FINE_SPAN_S
    rows = connection.exec_driver_sql(
        f"SELECT {_MERGED} FROM budget_samples WHERE cluster = ? AND budget = ? AND time >= ? AND time < ?"
        " GROUP BY CAST(time / ? AS INTEGER) ORDER BY min(time)",
        (cluster, budget, begin, end, span_s),
    )
    return [BudgetSample(*row) for row in rows]


_MERGED: Final = (
    "budget, min(time), sum(span_s), min(limit_watts),"
    " sum(measured_watts * span_s) / sum(CASE WHEN measured_watts IS NOT NULL THEN span_s END),"
    " max(max_measured_watts), max(committed_watts), sum(capped_watts * span_s) / sum(span_s),"
    " min(headroom_watts), sum(over_s)"
)


def names(connection: Connection, cluster: str) -> list[str]:
    """Return the names of all budgets with samples."""
    rows = connection.exec_driver_sql(
        "SELECT DISTINCT budget FROM budget_samples WHERE cluster = ?", (cluster,)
    )
    return [name for (name,) in rows]


def merge_old_samples(connection: Connection, before: float) -> int:
    """Merge the oldest day of fine samples from before `before` (Unix seconds).

    Returns:
        The number of samples that were replaced; if it is not 0, call again.
    """
    with transaction(connection):
        (oldest,) = connection.exec_driver_sql(
            "SELECT min(time) FROM budget_samples WHERE time < ? AND span_s < ?", (before, COARSE_SPAN_S / 2)
        ).one()
        if oldest is None:
            return 0
        # Whole coarse spans only, so that each is merged once.
        begin = oldest // COARSE_SPAN_S * COARSE_SPAN_S
        end = min(before // COARSE_SPAN_S * COARSE_SPAN_S, begin + _MERGED_AT_ONCE_S)
        if end <= begin:
            return 0
        merged = connection.exec_driver_sql(
            f"SELECT cluster, {_MERGED} FROM budget_samples WHERE time >= ? AND time < ?"
            " GROUP BY cluster, budget, CAST(time / ? AS INTEGER)",
            (begin, end, COARSE_SPAN_S),
        ).fetchall()
        deleted = connection.exec_driver_sql(
            "DELETE FROM budget_samples WHERE time >= ? AND time < ?", (begin, end)
        ).rowcount
        # A merged span counts as coarse even if only a part of it was sampled.
        rows = [(*row[:3], max(row[3], COARSE_SPAN_S / 2), *row[4:]) for row in merged]
        execute_many(connection, f"INSERT INTO budget_samples VALUES ({','.join('?' * 11)})", rows)
        return deleted


def save_changes(connection: Connection, cluster: str, changes: Iterable[BudgetChange]) -> None:
    """Store events of the budgets of `cluster` in one transaction."""
    with transaction(connection):
        _insert_changes(connection, cluster, changes)


def _insert_changes(connection: Connection, cluster: str, changes: Iterable[BudgetChange]) -> None:
    execute_many(
        connection,
        "INSERT INTO budget_changes (cluster, time, budget, actor, kind, why, details)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(cluster, c.time, c.budget, c.actor, c.kind, c.why, json.dumps(c.details)) for c in changes],
    )


def changes(
    connection: Connection, cluster: str, begin: float, end: float, limit: int = MAX_SAMPLES
) -> list[BudgetChange]:
    """Return the newest events between two times (Unix seconds), oldest first."""
    rows = connection.exec_driver_sql(
        "SELECT time, budget, actor, kind, why, details FROM budget_changes"
        " WHERE cluster = ? AND time >= ? AND time < ? ORDER BY time DESC, id DESC LIMIT ?",
        (cluster, begin, end, limit),
    ).fetchall()
    return [
        BudgetChange(time, budget, actor, kind, why, json.loads(details))
        for time, budget, actor, kind, why, details in reversed(rows)
    ]


def set_override(connection: Connection, cluster: str, override: LimitOverride, change: BudgetChange) -> None:
    """Store a live limit and its entry in the audit trail in one transaction."""
    with transaction(connection):
        connection.exec_driver_sql(
            "INSERT OR REPLACE INTO budget_overrides VALUES (?, ?, ?, ?, ?, ?, ?)",
            (cluster, *dataclasses.astuple(override)),
        )
        _insert_changes(connection, cluster, [change])


def clear_override(connection: Connection, cluster: str, budget: str, change: BudgetChange) -> bool:
    """Delete a live limit and store the change; return False if there was none."""
    with transaction(connection):
        deleted = connection.exec_driver_sql(
            "DELETE FROM budget_overrides WHERE cluster = ? AND budget = ?", (cluster, budget)
        ).rowcount
        if deleted:
            _insert_changes(connection, cluster, [change])
        return bool(deleted)


def overrides(connection: Connection, cluster: str, now: float) -> dict[str, LimitOverride]:
    """Return the live limits in force at `now` (Unix seconds) by budget."""
    rows = connection.exec_driver_sql(
        'SELECT budget, watts, "end", actor, time, reason FROM budget_overrides'
        ' WHERE cluster = ? AND ("end" IS NULL OR "end" > ?)',
        (cluster, now),
    )
    return {row[0]: LimitOverride(*row) for row in rows}


def save_nodes(connection: Connection, cluster: str, time: float, bodies: Mapping[str, str]) -> None:
    """Store the state of nodes (JSON text by node) in one transaction.

    senergyctld calls this before it sends a higher limit, so that it never underestimates a node after a
    restart.
    """
    with transaction(connection):
        execute_many(
            connection,
            "INSERT OR REPLACE INTO budget_nodes VALUES (?, ?, ?, ?)",
            [(cluster, node, time, body) for node, body in bodies.items()],
        )


def nodes(connection: Connection, cluster: str) -> dict[str, str]:
    """Return the stored state of the nodes of `cluster` by name, as JSON text."""
    rows = connection.exec_driver_sql("SELECT node, body FROM budget_nodes WHERE cluster = ?", (cluster,))
    return dict(rows.fetchall())


def forget_nodes(connection: Connection, cluster: str, names: Sequence[str]) -> None:
    """Delete the state of nodes that Slurm no longer has."""
    with transaction(connection):
        execute_many(
            connection,
            "DELETE FROM budget_nodes WHERE cluster = ? AND node = ?",
            [(cluster, name) for name in names],
        )


def drop_before(connection: Connection, before: float) -> int:
    """Delete samples, events and ended live limits from before `before` (Unix seconds).

    Returns:
        The number of deleted rows.
    """
    with transaction(connection):
        deleted = 0
        for statement in (
            "DELETE FROM budget_samples WHERE time < ?",
            "DELETE FROM budget_changes WHERE time < ?",
            'DELETE FROM budget_overrides WHERE "end" < ?',
        ):
            deleted += connection.exec_driver_sql(statement, (before,)).rowcount
        return deleted


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
