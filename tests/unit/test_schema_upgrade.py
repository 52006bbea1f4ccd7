"""Databases of all earlier schemas are upgraded without loss, and give the same results afterwards."""

from __future__ import annotations

import json

import pytest
from store_examples import Accounting
from stored_schemas import VERSIONS, load_schema, rows_of

from slurm_energy.accounting import engine
from slurm_energy.accounting.backups import integrity
from slurm_energy.accounting.history import run_history
from slurm_energy.accounting.schema import migrations

NEWEST = VERSIONS[-1]


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


@pytest.mark.parametrize("version", VERSIONS)
def test_an_upgrade_keeps_every_row(version, upgraded):
    accounting, before = upgraded(version)
    integrity.verify(accounting.path)
    after = rows_of(accounting.path)
    assert len(before["records"]) == 33
    for table, rows in before.items():
        kept = [{name: row[name] for name in rows[0]} for row in after[table]] if rows else []
        assert kept == rows, table


@pytest.mark.parametrize("version", VERSIONS)
def test_queries_of_an_upgraded_database_are_equal_to_those_of_the_newest(version, upgraded):
    accounting, before = upgraded(version)
    newest, _ = upgraded(NEWEST) if version != NEWEST else (accounting, None)
    for selection in ({}, {"user": "alice"}, {"account": "Physik"}, {"job": "103"}, {"steps": "1"}):
        assert _comparable(accounting, **selection) == _comparable(newest, **selection), selection
    bodies = {row["record_id"]: json.loads(row["body"]) for row in before["records"]}
    for record in accounting.find(with_traces=True):
        body = bodies[record["record_id"]]
        assert {name: record[name] for name in body} == body


def test_runs_of_an_upgraded_database_stay_in_the_history(upgraded):
    accounting, _ = upgraded(NEWEST)
    with engine.connect(accounting.path, read_only=True) as connection:
        runs = list(run_history.read_runs(connection))
    assert len(runs) == 18
    assert runs[3].name.startswith("=cmd|'")


def _comparable(accounting, **query):
    """Return the selected records by what all releases have stored of them."""
    keys = ("record_id", "node", "job_id", "step", "start", "end", "energy_joules", "uid", "policy")
    names = ("name", "user", "account", "state", "display_id")
    return [
        [record.get(key) for key in keys] + [record["job"] and record["job"][name] for name in names]
        for record in accounting.find(**query)
    ]
