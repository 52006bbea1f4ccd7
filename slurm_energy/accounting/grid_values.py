"""Carbon intensities and prices in the database, as fetched from their providers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, and_, bindparam, func, select
from sqlalchemy.sql import ColumnElement

from slurm_energy.accounting.engine import transaction
from slurm_energy.accounting.schema.tables import grid_series
from slurm_energy.grid.series import Sample


@dataclass(frozen=True, slots=True)
class SeriesKey:
    """Identity of a stored time series.

    Attributes:
        cluster: Slurm's ClusterName.
        quantity: `carbon` or `price`.
        provider: name of the provider in the configuration.
        zone: zone in the provider's notation.
        unit: unit of the values, `g/kWh` or a currency per kWh.
    """

    cluster: str
    quantity: str
    provider: str
    zone: str
    unit: str


def save_samples(connection: Connection, key: SeriesKey, samples: Sequence[Sample], fetched: float) -> None:
    """Store samples of a time series in one transaction.

    A sample replaces a stored sample of the series with the same start.

    Args:
        connection: connection to the database.
        key: identity of the time series.
        samples: the samples to store.
        fetched: Unix time at which the provider answered.
    """
    if not samples:
        return
    table = grid_series
    same = and_(_belongs(key), table.c.start == bindparam("old_start"))
    rows = [
        {
            "cluster": key.cluster,
            "quantity": key.quantity,
            "provider": key.provider,
            "zone": key.zone,
            "unit": key.unit,
            "start": start,
            "end": end,
            "value": value,
            "fetched": fetched,
        }
        for start, end, value in {sample[0]: sample for sample in samples}.values()
    ]
    with transaction(connection):
        connection.execute(table.delete().where(same), [{"old_start": row["start"]} for row in rows])
        connection.execute(table.insert(), rows)


def read_samples(connection: Connection, key: SeriesKey, start: float, end: float) -> list[Sample]:
    """Return the samples of a series that overlap the time from `start` to `end` (Unix seconds).

    The samples are in the order of their starts.
    """
    table = grid_series
    query = (
        select(table.c.start, table.c.end, table.c.value)
        .where(_belongs(key), table.c.start < end, table.c.end > start)
        .order_by(table.c.start)
    )
    return [(row[0], row[1], row[2]) for row in connection.execute(query)]


def newest_end(connection: Connection, key: SeriesKey) -> float | None:
    """Return the end of a series' newest sample in Unix time; None if the series has no samples."""
    query = select(func.max(grid_series.c.end)).where(_belongs(key))
    value = connection.execute(query).scalar_one()
    return None if value is None else float(value)


def drop_before(connection: Connection, quantity: str, before: float) -> None:
    """Delete the samples of a quantity that ended before a given Unix time, for all clusters."""
    table = grid_series
    connection.execute(table.delete().where(table.c.quantity == quantity, table.c.end < before))


def _belongs(key: SeriesKey) -> ColumnElement[bool]:
    table = grid_series
    return and_(
        table.c.cluster == key.cluster,
        table.c.quantity == key.quantity,
        table.c.provider == key.provider,
        table.c.zone == key.zone,
        table.c.unit == key.unit,
    )
