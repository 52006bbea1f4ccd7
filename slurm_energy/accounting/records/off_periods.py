"""Storage of the periods in which nodes were powered down.

senergyd does not run on a node that is off. senergyctld therefore adds these periods to the periods that
agents deliver. Their kind is `off`. Their energy is known only if a meter outside the node measured it.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, select, tuple_

from slurm_energy.accounting.engine import transaction
from slurm_energy.accounting.schema.tables import node_periods, periods

OFF: Final = "off"
"""Value of the column `kind`."""
_CHUNK: Final = 200


@dataclass(frozen=True, slots=True)
class OffPeriod:
    """A time span in which a node was powered down.

    Attributes:
        node: Slurm's name.
        start, end: whole Unix seconds.
        energy_uj: measured energy in microjoules; None means unknown.
    """

    node: str
    start: int
    end: int
    energy_uj: int | None


def store_off_periods(
    connection: Connection, cluster: str, items: Sequence[OffPeriod], received: float
) -> None:
    """Store the periods in which nodes were powered down, in one transaction.

    A period is skipped if a period of the same node with the same start is stored already.
    """
    with transaction(connection):
        for first in range(0, len(items), _CHUNK):
            chosen = [item for item in items[first : first + _CHUNK] if item.end > item.start]
            missing = _missing(connection, cluster, chosen)
            if missing:
                heads = [_head(cluster, item, received) for item in missing]
                connection.execute(node_periods.insert(), heads)
                connection.execute(periods.insert(), [_row(cluster, item) for item in missing])


def _missing(connection: Connection, cluster: str, items: Sequence[OffPeriod]) -> list[OffPeriod]:
    columns = (node_periods.c.cluster, node_periods.c.node, node_periods.c.start)
    wanted = {(cluster, item.node, item.start): item for item in items}
    stored = connection.execute(select(*columns).where(tuple_(*columns).in_(sorted(wanted)))).all()
    for name, node, start in stored:
        wanted.pop((name, node, int(start)), None)
    return list(wanted.values())


def _head(cluster: str, item: OffPeriod, received: float) -> dict[str, object]:
    return {
        "period_id": uuid.uuid4().hex,
        "cluster": cluster,
        "node": item.node,
        "start": item.start,
        "end": item.end,
        "late_seconds": 0.0,
        "uncertain_seconds": 0.0,
        "received": received,
        "extra": "{}",
    }


def _row(cluster: str, item: OffPeriod) -> dict[str, object]:
    return {
        "cluster": cluster,
        "node": item.node,
        "start": item.start,
        "end": item.end,
        "kind": OFF,
        "job_id": 0,
        "restart_count": 0,
        "uid": None,
        "cpu_uj": None,
        "dram_uj": None,
        "gpu_uj": None,
        "other_uj": item.energy_uj,
        "total_uj": item.energy_uj or 0,
    }
