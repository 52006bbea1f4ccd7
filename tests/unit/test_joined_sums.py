"""Tests of the reader of energy sums, which the database joins into one text per period.

The reader must return every sum completely, even if the text is very long and contains many groups.
"""

from __future__ import annotations

import gc
import itertools
from typing import Any

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

from slurm_energy.accounting import backends
from slurm_energy.accounting.engine import connect
from slurm_energy.accounting.schema import migrations, usage_tables
from slurm_energy.accounting.usage import joined_sums
from slurm_energy.accounting.usage.interval_usage import IntervalUsage
from slurm_energy.accounting.usage.sum_changes import SUM_COLUMNS
from slurm_energy.accounting.usage.whole_periods import add_whole_periods

HOUR = 3600
ENERGIES = {(hour, group): 10**15 * hour + group for hour in range(3) for group in range(1, 6)}


def add_groups(connection: Connection, count: int) -> None:
    """Store usage groups (rows of attributes by which reports sum) with the ids 1 to `count`.

    All attributes of these groups are empty.
    """
    texts = ("cluster", "kind", "account", "user", "qos", "partition", "policy", "tag", "gpu_kind")
    rows = [{"id": group, "digest": str(group), **dict.fromkeys(texts, "")} for group in range(1, count + 1)]
    connection.execute(usage_tables.usage_groups.insert(), rows)


@pytest.mark.parametrize("limit", [40, 1 << 20])
def test_joined_texts_beyond_the_limit_are_read_as_rows(
    store_location: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums are correct even if the values of many rows, joined to one text, exceed a limit.

    The database server joins the values of many rows to one text, which is faster to read. MariaDB cuts off
    the end of a text that is longer than the server's limit. In this case, the rows must be read one by one.
    """
    monkeypatch.setattr(backends, "MAX_JOINED_BYTES", limit)
    monkeypatch.setattr(joined_sums, "MAX_JOINED_BYTES", limit)
    migrations.prepare(store_location)
    none = dict.fromkeys(SUM_COLUMNS, 0)
    with connect(store_location) as connection:
        add_groups(connection, 5)
        times = [{"start": hour * HOUR + 600, "end": (hour + 1) * HOUR + 600} for hour in range(3)]
        rows = [
            {**none, **times[hour], "usage_group": group, "total_uj": energy}
            for (hour, group), energy in ENERGIES.items()
        ]
        connection.execute(usage_tables.usage_sums.insert(), rows)
        read = [
            (start // HOUR, end // HOUR, dict(zip(groups, energies, strict=True)))
            for start, end, groups, energies in joined_sums.period_energies(connection, HOUR, 4 * HOUR)
        ]
        if connection.dialect.name == "mariadb":
            assert connection.exec_driver_sql("SELECT @@group_concat_max_len").scalar_one() == limit
    assert read == [
        (hour, hour + 1, {group: ENERGIES[hour, group] for group in range(1, 6)}) for hour in (1, 2)
    ]


def test_the_sums_of_a_day_have_all_its_groups_and_columns(store_location: str) -> None:
    migrations.prepare(store_location)
    day, largest = joined_sums.DAY_S, 2**63 - 1
    sums = {
        group: tuple(largest - 100 * group - n for n in range(len(SUM_COLUMNS))) for group in range(1, 200)
    }
    with connect(store_location) as connection:
        add_groups(connection, len(sums))
        rows = [
            {"start": start, "end": end, "usage_group": group, **dict(zip(SUM_COLUMNS, values, strict=True))}
            for start, end in ((0, day), (day, 2 * day), (day, 3 * day), (2 * day, 3 * day))
            for group, values in sums.items()
            if end == 2 * day or group < 3
        ]
        connection.execute(usage_tables.usage_days.insert(), rows)
        read = list(joined_sums.day_sums(connection, day))
        assert not list(joined_sums.day_sums(connection, 7 * day))
    assert sorted(read) == [(group, *values) for group, values in sorted(sums.items())]


def test_sums_of_a_short_window_are_whole(store_location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums over a short time window are complete even if the database must split them.

    The database joins the sums of many rows into texts, and truncates a text above a limited length. In
    the test, all sums of the window together are longer than one text may be. Each text therefore
    contains at most one row of each group.
    """
    monkeypatch.setattr(backends, "MAX_JOINED_BYTES", 17 << 10)
    migrations.prepare(store_location)
    largest = 2**63 - 1
    with connect(store_location) as connection:
        add_groups(connection, 100)
        values = dict.fromkeys(SUM_COLUMNS, largest)
        rows = [
            {"start": start, "end": end, "usage_group": group, **values}
            for start, end in itertools.product((0, 60), (100, 200, 3600, 4000))
            for group in range(1, 101)
        ]
        connection.execute(usage_tables.usage_sums.insert(), rows)
        interval = IntervalUsage(0, HOUR)
        add_whole_periods(connection, interval, HOUR)
    assert interval.sums == {group: (6 * largest,) * len(SUM_COLUMNS) for group in range(1, 101)}


@pytest.mark.slow
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_connection_that_is_lost_in_a_stream_is_reported_once(
    database_servers: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A connection that is lost during streaming causes one error.

    The first hour has been read. The texts of the other hours, 1.4 MB, are still on the server
    when the connection is lost.
    """
    server = database_servers.get("mariadb")
    none = ", 0" * (len(SUM_COLUMNS) - 1)
    sql = f"SELECT (seq DIV 1500) * {HOUR}, (seq DIV 1500) * {HOUR} + 900, seq MOD 1500, 1e18 + seq{none}"
    with database_servers.database("mariadb") as url, connect(url) as connection:
        migrations.prepare(url)
        connection.exec_driver_sql("SET foreign_key_checks = 0")
        connection.exec_driver_sql(f"INSERT INTO usage_sums {sql} FROM seq_0_to_59999")
        session = backends.backend_of(connection).session(connection)
        read = joined_sums.period_energies(connection, 0, 40 * HOUR)
        assert len(next(read).groups) == 1500
        server.execute(f"KILL {session}")
        with pytest.raises(OperationalError, match="Lost connection"):
            list(read)
        del read
        gc.collect()
        assert connection.invalidated
    assert not caplog.records
