"""Starts and durations of jobs on nodes, read from stored records.

The times serve to forecast the demand for nodes.
"""

from __future__ import annotations

from operator import itemgetter
from typing import Final

from sqlalchemy import Connection, select

from slurm_energy.accounting.schema.tables import records as _records

MAX_ARRIVALS: Final = 500_000


def read_node_arrivals(
    connection: Connection, cluster: str, since: float, max_arrivals: int = MAX_ARRIVALS
) -> list[tuple[str, float, float]]:
    """Return (node, start, end) of each job on each node, ordered by start. Times are Unix seconds.

    If there are more than `max_arrivals` rows, the oldest rows are omitted. The result is complete from its
    first start on: it contains every later start.

    Args:
        connection: connection to the database.
        cluster: Slurm's ClusterName.
        since: earliest start in Unix seconds.
        max_arrivals: maximum number of rows that are read.
    """
    # The condition is on the end, for which there is an index. No record ends before its start.
    query = (
        select(_records.c.node, _records.c.start, _records.c.end)
        .where(_records.c.cluster == cluster, _records.c.step == "", _records.c.end >= since)
        .order_by(_records.c.end.desc())
        .limit(max_arrivals)
    )
    rows = [(row[0], row[1], row[2]) for row in connection.execute(query)]
    if len(rows) == max_arrivals:  # jobs that started up to the earliest end may have ended before these rows
        earliest_end = rows[-1][2]
        rows = [row for row in rows if row[1] > earliest_end]
    return sorted((row for row in rows if row[1] >= since), key=itemgetter(1))
