"""Tests of the tables that `senergy db` exports and prunes."""

from slurm_energy.accounting import retention
from slurm_energy.accounting.backups import export
from slurm_energy.cli import db


def test_the_choices_are_those_of_the_store():
    assert tuple(retention.CATEGORIES) == db.PRUNABLE
    assert tuple(export.EXPORTS) == db.EXPORTABLE


def test_columns_of_an_export_end_with_their_unit():
    for table in export.EXPORTS.values():
        for column in table.columns:
            if column.kind == "number":
                assert column.name.endswith(("_s", "_joules", "_watts", "_unix_s")), column.name
