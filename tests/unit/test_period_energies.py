"""The energy of groups by period is whole on each store, however long the texts are that the store joins."""

from __future__ import annotations

import pytest

from slurm_energy.accounting import backends
from slurm_energy.accounting.engine import connect
from slurm_energy.accounting.schema import migrations, usage_tables
from slurm_energy.accounting.usage import period_energies
from slurm_energy.accounting.usage.sum_changes import SUM_COLUMNS

HOUR = 3600
ENERGIES = {(hour, group): 10**15 * hour + group for hour in range(3) for group in range(1, 6)}


@pytest.mark.parametrize("limit", [40, 1 << 20])
def test_joined_texts_beyond_the_limit_are_read_as_rows(
    store_location: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MariaDB cuts the last digits of a text that is longer than the limit."""
    monkeypatch.setattr(backends, "MAX_JOINED_BYTES", limit)
    monkeypatch.setattr(period_energies, "MAX_JOINED_BYTES", limit)
    migrations.prepare(store_location)
    none = dict.fromkeys(SUM_COLUMNS, 0)
    with connect(store_location) as connection:
        digests = [{"id": group, "digest": str(group)} for group in range(1, 6)]
        texts = ("cluster", "kind", "account", "user", "qos", "partition", "policy", "tag", "gpu_kind")
        connection.execute(
            usage_tables.usage_groups.insert(), [row | dict.fromkeys(texts, "") for row in digests]
        )
        times = [{"start": hour * HOUR, "end": (hour + 1) * HOUR} for hour in range(3)]
        rows = [
            {**none, **times[hour], "usage_group": group, "total_uj": energy}
            for (hour, group), energy in ENERGIES.items()
        ]
        connection.execute(usage_tables.usage_sums.insert(), rows)
        read = [
            (start // HOUR, end // HOUR, dict(zip(groups, energies, strict=True)))
            for start, end, groups, energies in period_energies.period_energies(connection, HOUR, 3 * HOUR)
        ]
        if connection.dialect.name == "mariadb":
            assert connection.exec_driver_sql("SELECT @@group_concat_max_len").scalar_one() == limit
    assert read == [
        (hour, hour + 1, {group: ENERGIES[hour, group] for group in range(1, 6)}) for hour in (1, 2)
    ]
