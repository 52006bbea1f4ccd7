"""Tests that databases of all earlier schema versions are upgraded without loss.

The databases give the same results after the upgrade.
"""

from __future__ import annotations

import json

import pytest
from store_examples import Accounting
from stored_schemas import VERSIONS, load_schema, rows_of
from test_hour_energies import energies_by_hour, stored_hours

from slurm_energy.accounting import engine
from slurm_energy.accounting.backups import integrity
from slurm_energy.accounting.history import run_history
from slurm_energy.accounting.schema import migrations
from slurm_energy.accounting.usage.usage_rollup import UsageRollup

NEWEST = VERSIONS[-1]
ALL_VERSIONS = [
    pytest.param(version, marks=[pytest.mark.slow] * (version not in (VERSIONS[0], NEWEST)))
    for version in VERSIONS
]


@pytest.fixture
def upgraded(tmp_path):
    def upgrade(version):
        folder = tmp_path / str(version)
        folder.mkdir()
        path = folder / "senergy.db"
        load_schema(version, path)
        before = rows_of(path)
        migrations.prepare(path)
        return Accounting(folder), before

    return upgrade


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_an_upgrade_keeps_every_row(version, upgraded):
    accounting, before = upgraded(version)
    integrity.verify(accounting.path)
    after = rows_of(accounting.path)
    assert len(before["records"]) == 33
    for table, rows in before.items():
        kept = [{name: row[name] for name in rows[0]} for row in after[table]] if rows else []
        assert kept == rows, table


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_queries_of_an_upgraded_database_are_equal_to_those_of_the_newest(version, upgraded):
    accounting, before = upgraded(version)
    newest, _ = upgraded(NEWEST) if version != NEWEST else (accounting, None)
    for selection in ({}, {"user": "alice"}, {"account": "Physik"}, {"job": "103"}, {"steps": "1"}):
        assert _comparable(accounting, **selection) == _comparable(newest, **selection), selection
    bodies = {row["record_id"]: json.loads(row["body"]) for row in before["records"]}
    for record in accounting.find(with_traces=True):
        body = bodies[record["record_id"]]
        assert {name: record[name] for name in body} == body


def test_an_upgrade_computes_the_energies_of_hours(upgraded):
    accounting, before = upgraded(13)
    assert "usage_day_hours" not in before
    with engine.connect(accounting.path, read_only=True) as connection:
        hours = energies_by_hour(connection, 0, 10**9)
        assert hours == stored_hours(connection)
    assert len(hours) > 90


def test_an_upgrade_takes_off_the_time_in_which_jobs_were_suspended(upgraded):
    accounting, before = upgraded(13)
    elapsed_s = {row["id"]: row["elapsed_s"] for row in before["jobs"]}
    counted_s = {row["job"]: row["end"] - row["start"] for row in before["usage_runs"]}
    assert all(counted_s[job] > elapsed_s[job] > 0 for job in counted_s)
    with engine.connect(accounting.path) as connection:
        rollup = UsageRollup()
        while rollup.advance(connection, 1.8e9):
            pass
    runs = rows_of(accounting.path)["usage_runs"]
    counted_now_s = {row["job"]: row["end"] - row["start"] - row["suspended_s"] for row in runs}
    assert counted_now_s == {job: elapsed_s[job] for job in counted_s}


def test_runs_of_an_upgraded_database_stay_in_the_history(upgraded):
    accounting, _ = upgraded(NEWEST)
    with engine.connect(accounting.path, read_only=True) as connection:
        runs = list(run_history.read_runs(connection))
    assert len(runs) == 18
    assert runs[3].name.startswith("=cmd|'")


def _comparable(accounting, **query):
    """Return the selected records with only those fields that every release has stored."""
    keys = ("record_id", "node", "job_id", "step", "start", "end", "energy_joules", "uid", "policy")
    names = ("name", "user", "account", "state", "display_id")
    return [
        [record.get(key) for key in keys] + [record["job"] and record["job"][name] for name in names]
        for record in accounting.find(**query)
    ]
