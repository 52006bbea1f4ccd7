"""Starts and durations of jobs on nodes, from stored records, for the forecast of the demand for nodes."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, select

from slurm_energy.accounting.schema.tables import records as _records

_MAX_ROWS: Final = 500_000


def read_node_arrivals(connection: Connection, cluster: str, since: float) -> list[tuple[str, float, float]]:
    """Return node, start and end (Unix seconds) of each job on each node, in order of the start.

    At most the newest `_MAX_ROWS` rows are returned.

    Args:
        connection: connection to the database.
        cluster: Slurm's ClusterName.
        since: earliest start in Unix seconds.
    """
    query = (
        select(_records.c.node, _records.c.start, _records.c.end)
        .where(_records.c.cluster == cluster, _records.c.step == "", _records.c.start >= since)
        .order_by(_records.c.start.desc())
        .limit(_MAX_ROWS)
    )
    return [(row[0], row[1], row[2]) for row in reversed(connection.execute(query).all())]
