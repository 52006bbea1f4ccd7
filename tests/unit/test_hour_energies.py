"""Tests of the energies by hour that are read for a time span.

The read energies must be complete. They must equal the stored sums of the periods (reports of energy) that
the nodes delivered for the same hours.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from sqlalchemy import Connection, select
from test_joined_sums import add_groups

from slurm_energy.accounting.engine import connect
from slurm_energy.accounting.schema import migrations, usage_tables
from slurm_energy.accounting.usage.hour_energies import hour_energies
from slurm_energy.accounting.usage.sum_changes import DAY_S, HOUR_S, SumChanges

GROUPS = 150
"""More than one joined text of a server contains."""
LARGEST = 2**63 - 1


def energies_by_hour(connection: Connection, start: int, end: int) -> dict[tuple[int, int], int]:
    """Return the energy of each hour and group in microjoules, as `hour_energies` reads it.

    The keys are the start of the hour and the group. Hours without energy are left out.
    """
    result: dict[tuple[int, int], int] = {}
    for first, hours, rows in hour_energies(connection, start, end):
        for group, *energies in rows:
            for hour, energy_uj in enumerate(energies[:hours]):
                if energy_uj:
                    assert (first + hour * HOUR_S, group) not in result
                    result[first + hour * HOUR_S, group] = energy_uj
    return result


def stored_hours(connection: Connection) -> dict[tuple[int, int], int]:
    """Return the stored energy of each hour and group in microjoules.

    The key is (start of the hour, group). The tests compare this result with the result of
    `energies_by_hour`.
    """
    sums = usage_tables.usage_sums.c
    rows = connection.execute(select(sums.start, sums.end, sums.usage_group, sums.total_uj))
    return {
        (start, group): energy_uj
        for start, end, group, energy_uj in rows
        if energy_uj and end - start == HOUR_S and start % HOUR_S == 0
    }


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (0, 4 * DAY_S),
        (-HOUR_S, DAY_S - HOUR_S),
        (23 * HOUR_S, DAY_S + 23 * HOUR_S),
        (5 * HOUR_S - 1, 9 * HOUR_S + 1),
        (DAY_S, 2 * DAY_S),
        (7 * HOUR_S, 3 * DAY_S + HOUR_S),
        (HOUR_S + 1, 2 * HOUR_S + 1),
        (9 * DAY_S, 10 * DAY_S),
    ],
)
def test_energies_of_a_span_are_those_of_its_whole_hours(store_location: str, start: int, end: int) -> None:
    migrations.prepare(store_location)
    rng = random.Random(1)
    with connect(store_location) as connection:
        add_groups(connection, GROUPS)
        changes = SumChanges()
        for group in rng.sample(range(1, GROUPS + 1), 100):
            for hour in rng.sample(range(3 * 24), 9):
                energy_uj = rng.choice([1, LARGEST, rng.randrange(10**15)])
                changes.add((hour * HOUR_S, (hour + 1) * HOUR_S, group), {"total_uj": energy_uj})
        changes.apply(connection)
        expected = {
            key: energy_uj
            for key, energy_uj in stored_hours(connection).items()
            if start <= key[0] and key[0] + HOUR_S <= end
        }
        assert energies_by_hour(connection, start, end) == expected
        if start == 0:
            assert len(expected) == 900


def test_changes_of_sums_change_the_energies_of_hours(store_location: str) -> None:
    """If a stored sum of energy changes, the stored energies by hour change in the same way.

    The test changes the sums of two usage groups. It moves all energy of an hour from the first group to
    the second, after which the first group has no row for this hour any more. Sums over periods other
    than exactly one hour do not appear in the energies by hour.
    """
    migrations.prepare(store_location)

    def change(connection: Connection, *keys_and_energies: tuple[Any, int]) -> None:
        changes = SumChanges()
        for key, energy_uj in keys_and_energies:
            changes.add(key, {"total_uj": energy_uj, "cpu_rows": 1 if energy_uj > 0 else -1})
        changes.apply(connection)

    first, second = (0, HOUR_S), (23 * HOUR_S, DAY_S)
    with connect(store_location) as connection:
        add_groups(connection, 2)
        change(connection, ((*first, 1), 7), ((*second, 1), 9), ((0, 2 * HOUR_S, 1), 5), ((60, 3660, 1), 3))
        assert energies_by_hour(connection, 0, DAY_S) == {(0, 1): 7, (23 * HOUR_S, 1): 9}
        change(connection, ((*first, 1), -7), ((*first, 2), 7))
        change(connection, ((*first, 2), 1))
        assert energies_by_hour(connection, 0, DAY_S) == {(0, 2): 8, (23 * HOUR_S, 1): 9}
        change(connection, ((*second, 1), -9))
        assert energies_by_hour(connection, 0, DAY_S) == stored_hours(connection) == {(0, 2): 8}
        days = connection.execute(select(usage_tables.usage_day_hours.c.usage_group)).scalars().all()
    assert days == [2]


def test_an_upgrade_of_each_store_computes_the_energies(store_location: str) -> None:
    migrations.prepare(store_location)
    with connect(store_location) as connection:
        add_groups(connection, 3)
        changes = SumChanges()
        for group, hour, length_s in itertools.product((1, 2), (0, 5, 23, 24, 40), (HOUR_S, 900)):
            key = (hour * HOUR_S, hour * HOUR_S + length_s, group)
            changes.add(key, {"total_uj": LARGEST - hour - group, "cpu_rows": 1})
        changes.add((0, HOUR_S, 3), {"cpu_seconds": 5})
        changes.apply(connection)
        usage_tables.usage_day_hours.drop(connection)
        for _ in range(2):  # MariaDB repeats an interrupted step
            migrations.upgrade(connection, 13, 14)
            hours = energies_by_hour(connection, 0, 2 * DAY_S)
            assert hours == stored_hours(connection)
            assert len(hours) == 10
        days = connection.execute(select(usage_tables.usage_day_hours.c.usage_group)).scalars().all()
    assert sorted(days) == [1, 1, 2, 2]
