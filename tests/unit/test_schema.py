"""Test that databases on servers have the same schema as SQLite files.

The tables of a new database on a server must equal those of a SQLite file after all migrations.
"""

from __future__ import annotations

import pytest
from sqlalchemy import inspect

from slurm_energy.accounting import engine
from slurm_energy.accounting.schema import migrations, tables


def schema(location):
    """Return the columns, keys and indexes of each table, without the types of the columns."""
    with engine.connect(location) as connection:
        inspector = inspect(connection)
        keys = {
            table: set(inspector.get_pk_constraint(table)["constrained_columns"])
            for table in inspector.get_table_names()
        }
        return {
            table: {
                "columns": {
                    # SQLite shows row ids as nullable.
                    (one["name"], one["nullable"] and one["name"] not in keys[table])
                    for one in inspector.get_columns(table)
                },
                "primary key": keys[table],
                "unique": {
                    tuple(sorted(one["column_names"])) for one in inspector.get_unique_constraints(table)
                },
                "references": {
                    (tuple(one["constrained_columns"]), one["referred_table"])
                    for one in inspector.get_foreign_keys(table)
                },
                "indexes": {
                    (one["name"], tuple(one["column_names"]))
                    for one in inspector.get_indexes(table)
                    if not one["unique"]
                },
            }
            for table in keys
        }


def test_all_stores_have_the_same_schema(empty_database, tmp_path):
    migrations.prepare(tmp_path / "migrated.db")
    migrations.prepare(empty_database)
    expected, actual = schema(tmp_path / "migrated.db"), schema(empty_database)
    assert actual.keys() == expected.keys() == tables.metadata.tables.keys()
    for table, parts in expected.items():
        columns = tables.metadata.tables[table].columns
        assert actual[table]["columns"] == {(column.name, bool(column.nullable)) for column in columns}
        actual[table]["indexes"] &= parts["indexes"]  # MariaDB adds some for references
        assert actual[table] == parts, table


def test_an_interrupted_creation_is_repeated(empty_database, monkeypatch):
    """A creation of tables that was interrupted is completed at the next start.

    MariaDB commits each table separately, so that some tables exist after the interruption.
    """
    with engine.connect(empty_database) as connection, engine.transaction(connection):
        if connection.dialect.name == "sqlite":
            pytest.skip("SQLite's steps are transactions")
        migrations.create_tables(connection, tables.schema_version, tables.jobs)
    migrations.prepare(empty_database)
    migrations.prepare(empty_database)
    assert schema(empty_database).keys() == tables.metadata.tables.keys()


def test_a_database_of_another_program_is_not_touched(empty_database):
    with engine.connect(empty_database) as connection:
        connection.exec_driver_sql("CREATE TABLE other (x INTEGER)")
    for function in (migrations.check, migrations.prepare):
        with pytest.raises(migrations.UnavailableError, match="a database of another program"):
            function(empty_database)
    assert schema(empty_database).keys() == {"other"}


def test_a_newer_schema_is_refused(empty_database):
    migrations.prepare(empty_database)
    with engine.connect(empty_database) as connection:
        connection.exec_driver_sql("CREATE TABLE of_a_newer_release (x INTEGER)")
        connection.execute(tables.schema_version.insert(), {"version": 99, "applied": 0.0})
    for function in (migrations.check, migrations.prepare):
        with pytest.raises(migrations.UnavailableError, match="schema 99 is newer"):
            function(empty_database)
