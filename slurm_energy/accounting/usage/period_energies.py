"""The energy of groups by period, for sums that weight each period, such as emissions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Final

from sqlalchemy import Connection, String, cast, func, select

from slurm_energy.accounting.backends import MAX_JOINED_BYTES
from slurm_energy.accounting.schema import usage_tables

_SUMS: Final = usage_tables.usage_sums.c


def period_energies(
    connection: Connection, start: int, end: int
) -> Iterator[tuple[int, int, Sequence[int], Sequence[int]]]:
    """Yield the periods between two times in their order: start, end, groups, and microjoules of each group.

    A month may have a million energies. The database joins those of a period to one text, because the driver
    of MariaDB takes 20 times as long for as many rows.

    Args:
        connection: connection to the database.
        start: Unix seconds; periods that begin earlier are left out.
        end: Unix seconds; periods that end later are left out.
    """
    inside = (_SUMS.start >= start, _SUMS.start < end, _SUMS.end <= end, _SUMS.total_uj > 0)
    texts = [
        func.aggregate_strings(cast(column, String), ",") for column in (_SUMS.usage_group, _SUMS.total_uj)
    ]
    result = connection.execute(
        select(_SUMS.start, _SUMS.end, *texts)
        .where(*inside)
        .group_by(_SUMS.start, _SUMS.end)
        .order_by(_SUMS.start, _SUMS.end)
    )
    for first, last, groups, energies in result.all():
        if max(len(groups), len(energies)) < MAX_JOINED_BYTES:
            yield first, last, json.loads(f"[{groups}]"), json.loads(f"[{energies}]")
        else:
            of_period = (_SUMS.start == first, _SUMS.end == last, _SUMS.total_uj > 0)
            rows = connection.execute(select(_SUMS.usage_group, _SUMS.total_uj).where(*of_period)).all()
            yield first, last, [row[0] for row in rows], [row[1] for row in rows]
