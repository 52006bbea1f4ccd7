"""All tables of the database, for SQLite, MariaDB and PostgreSQL.

To change a table, see `migrations.py`. A SQLite file that was migrated from older schema versions has the
same tables, columns and keys, with the types of SQLite.

Text that is part of a key or an index has a bounded length (`name_text`), because MariaDB requires it. Text
is compared and ordered by code points on every kind of database.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.types import TypeEngine

MAX_NAME: Final = 255
"""Maximum length of names, in characters."""
MAX_CLUSTER: Final = 64
"""Maximum length of the name of a cluster."""
MAX_STEP: Final = 64
"""Maximum length of the name of a Slurm step."""
_COLLATION: Final = "utf8mb4_nopad_bin"  # of MariaDB

metadata: Final = MetaData()


def name_text(length: int = MAX_NAME) -> TypeEngine[str]:
    """Return the column type of text with at most `length` characters. The column may be part of a key."""
    return (
        String(length)
        .with_variant(postgresql.VARCHAR(length, collation="C"), "postgresql")
        .with_variant(mysql.VARCHAR(length, charset="utf8mb4", collation=_COLLATION), "mysql", "mariadb")
    )


def long_text() -> TypeEngine[str]:
    """Return the column type of text of any length."""
    return (
        Text()
        .with_variant(postgresql.TEXT(collation="C"), "postgresql")
        .with_variant(mysql.LONGTEXT(charset="utf8mb4", collation=_COLLATION), "mysql", "mariadb")
    )


INTEGER: Final = BigInteger().with_variant(Integer, "sqlite")
"""Type of integers of 64 bits."""
REAL: Final[TypeEngine[float]] = Double().with_variant(mysql.DOUBLE(asdecimal=False), "mysql", "mariadb")
"""Type of floating-point numbers of 64 bits."""


def row_id() -> Column[int]:
    """Define the column `id` of a table, which contains the row ids.

    The database assigns the ids in ascending order.
    """
    return Column("id", INTEGER, primary_key=True, autoincrement=True)


def partial_index(name: str, *columns: str, where: str) -> Index:
    """Return an index of those rows that fulfil a condition. On MariaDB, the index has all rows.

    Args:
        name: name of the index.
        columns: names of the indexed columns.
        where: SQL condition, portable between SQLite and PostgreSQL.
    """
    return Index(name, *columns, sqlite_where=text(where), postgresql_where=text(where))


def define_table(name: str, *items: Any, by_key: bool = False) -> Table:
    """Add a table to the schema.

    Args:
        name: name of the table.
        items: columns, keys and indexes.
        by_key: whether SQLite stores the rows in the order of the primary key, as InnoDB always does.
    """
    return Table(
        name,
        metadata,
        *items,
        sqlite_with_rowid=not by_key,
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate=_COLLATION,
    )


schema_version: Final = define_table(
    "schema_version", Column("version", Integer, nullable=False), Column("applied", REAL, nullable=False)
)

jobs: Final = define_table(
    "jobs",
    row_id(),
    Column("cluster", name_text(MAX_CLUSTER), nullable=False),
    Column("job_id", INTEGER, nullable=False),
    Column("submit", REAL, nullable=False),
    Column("display_id", name_text(), nullable=False),
    Column("name", long_text(), nullable=False),
    Column("account", name_text()),
    Column("partition", name_text()),
    Column("user", name_text()),
    Column("state", name_text(), nullable=False),
    Column("start", REAL),
    Column("end", REAL),
    Column("elapsed_s", REAL),
    Column("nodes", INTEGER),
    Column("array_job_id", INTEGER),
    Column("array_task_id", INTEGER),
    Column("het_job_id", INTEGER),
    Column("het_offset", INTEGER),
    Column("finished", Boolean, nullable=False),
    Column("updated", REAL, nullable=False),
    Column("time_limit_s", REAL),
    Column("requested", long_text()),
    Column("learned", Boolean, nullable=False, server_default=text("false")),
    Column("tuning_learned", Boolean, nullable=False, server_default=text("false")),
    Column("qos", name_text()),
    Column("allocated", long_text()),
    Column("exit_code", name_text()),
    Column("step_exit_code", name_text()),
    UniqueConstraint("cluster", "job_id", "submit"),
    partial_index("jobs_array", "array_job_id", where="array_job_id IS NOT NULL"),
    partial_index("jobs_het", "het_job_id", where="het_job_id IS NOT NULL"),
    partial_index("jobs_unfinished", "updated", where="NOT finished"),
    partial_index("jobs_unlearned", "updated", where="finished AND NOT learned"),
    partial_index("jobs_tuning_unlearned", "updated", where="learned AND NOT tuning_learned"),
)

records: Final = define_table(
    "records",
    row_id(),
    Column("record_id", name_text(), nullable=False, unique=True),
    Column("cluster", name_text(MAX_CLUSTER), nullable=False),
    Column("node", name_text(), nullable=False),
    Column("job_id", INTEGER, nullable=False),
    Column("restart_count", INTEGER, nullable=False),
    Column("step", name_text(MAX_STEP), nullable=False),
    Column("start", REAL, nullable=False),
    Column("end", REAL, nullable=False),
    Column("uid", INTEGER, nullable=False),
    Column("user", name_text()),
    Column("account", name_text()),
    Column("partition", name_text()),
    Column("policy", name_text(), nullable=False),
    Column("energy_joules", REAL),
    Column("received", REAL, nullable=False),
    Column("job", INTEGER, ForeignKey("jobs.id")),
    Column("body", long_text(), nullable=False),
    UniqueConstraint("node", "job_id", "start", "step", "restart_count", "cluster"),
    Index("records_job_id", "job_id", "start"),
    Index("records_end", "end"),
    Index("records_uid", "uid", "end"),
    partial_index("records_account", "account", "end", where="account IS NOT NULL"),
    partial_index("records_job", "job", where="job IS NOT NULL"),
    partial_index("records_without_job", "received", "cluster", "job_id", where="job IS NULL"),
)

traces: Final = define_table(
    "traces",
    Column(
        "record", INTEGER, ForeignKey("records.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    ),
    Column("end", REAL, nullable=False),
    Column("body", long_text(), nullable=False),
    Index("traces_end", "end"),
)

nodes: Final = define_table(
    "nodes",
    Column("cluster", name_text(MAX_CLUSTER), nullable=False),
    Column("node", name_text(), nullable=False),
    Column("last_end", REAL, nullable=False),
    Column("last_received", REAL, nullable=False),
    PrimaryKeyConstraint("cluster", "node"),
)

history: Final = define_table(
    "history",
    row_id(),
    Column("kind", LargeBinary(8).with_variant(mysql.VARBINARY(8), "mysql", "mariadb"), nullable=False),
    Column("end", REAL, nullable=False),
    Column("body", long_text(), nullable=False),
    Column("user", name_text()),
    Index("history_kind", "kind", "end"),
    Index("history_end", "end"),
    Index("history_user", "user", "end"),
)

decisions: Final = define_table(
    "decisions",
    row_id(),
    Column("cluster", name_text(MAX_CLUSTER), nullable=False),
    Column("job_id", INTEGER, nullable=False),
    Column("submit", REAL, nullable=False),
    Column("time", REAL, nullable=False),
    Column("kind", name_text(), nullable=False),
    Column("why", long_text(), nullable=False),
    Column("details", long_text(), nullable=False),
    Index("decisions_job", "job_id", "submit"),
    Index("decisions_time", "time"),
)

predictions: Final = define_table(
    "predictions",
    Column("cluster", name_text(MAX_CLUSTER), nullable=False),
    Column("job_id", INTEGER, nullable=False),
    Column("start", REAL, nullable=False),
    Column("predicted_s", REAL, nullable=False),
    PrimaryKeyConstraint("cluster", "job_id", "start"),
    Index("predictions_start", "start"),
)

tuning_runs: Final = define_table(
    "tuning_runs",
    row_id(),
    Column("job", INTEGER, ForeignKey("jobs.id"), nullable=False, unique=True),
    Column("owner", name_text(), nullable=False),
    Column("hardware", name_text(), nullable=False),
    Column("fingerprint", name_text()),
    Column("model", name_text()),
    Column("workload", name_text(), nullable=False),
    Column("end", REAL, nullable=False),
    Column("body", long_text(), nullable=False),
    Index("tuning_runs_workload", "owner", "workload", "hardware", "end"),
    partial_index("tuning_runs_model", "owner", "model", "hardware", "end", where="model IS NOT NULL"),
    Index("tuning_runs_end", "end"),
)

tuning_pins: Final = define_table(
    "tuning_pins",
    Column("owner", name_text(), nullable=False),
    Column("workload", name_text(), nullable=False),
    Column("hardware", name_text(), nullable=False),
    Column("point", long_text(), nullable=False),
    Column("pinned_by", name_text(), nullable=False),
    Column("time", REAL, nullable=False),
    PrimaryKeyConstraint("owner", "workload", "hardware"),
)

tuning_starts: Final = define_table(
    "tuning_starts",
    Column("cluster", name_text(MAX_CLUSTER), nullable=False),
    Column("job_id", INTEGER, nullable=False),
    Column("restart_count", INTEGER, nullable=False),
    Column("hardware", name_text(), nullable=False),
    Column("owner", name_text(), nullable=False),
    Column("workload", name_text(), nullable=False),
    Column("exploration", Boolean, nullable=False),
    Column("time", REAL, nullable=False),
    Column("body", long_text(), nullable=False),
    PrimaryKeyConstraint("cluster", "job_id", "restart_count", "hardware"),
    partial_index("tuning_starts_workload", "owner", "workload", "hardware", where="exploration"),
    Index("tuning_starts_time", "time"),
)

budget_samples: Final = define_table(
    "budget_samples",
    Column("cluster", name_text(MAX_CLUSTER), nullable=False),
    Column("budget", name_text(), nullable=False),
    Column("time", REAL, nullable=False),
    Column("span_s", REAL, nullable=False),
    Column("limit_watts", REAL),
    Column("measured_watts", REAL),
    Column("max_measured_watts", REAL),
    Column("committed_watts", REAL, nullable=False),
    Column("capped_watts", REAL, nullable=False),
    Column("headroom_watts", REAL),
    Column("over_s", REAL, nullable=False),
    PrimaryKeyConstraint("cluster", "budget", "time"),
    Index("budget_samples_time", "time"),
)

budget_changes: Final = define_table(
    "budget_changes",
    row_id(),
    Column("cluster", name_text(MAX_CLUSTER), nullable=False),
    Column("time", REAL, nullable=False),
    Column("budget", name_text()),
    Column("actor", name_text()),
    Column("kind", name_text(), nullable=False),
    Column("why", long_text(), nullable=False),
    Column("details", long_text(), nullable=False),
    Index("budget_changes_time", "cluster", "time"),
)

budget_overrides: Final = define_table(
    "budget_overrides",
    Column("cluster", name_text(MAX_CLUSTER), nullable=False),
    Column("budget", name_text(), nullable=False),
    Column("watts", REAL, nullable=False),
    Column("end", REAL),
    Column("actor", name_text(), nullable=False),
    Column("time", REAL, nullable=False),
    Column("reason", long_text(), nullable=False),
    PrimaryKeyConstraint("cluster", "budget"),
)

budget_nodes: Final = define_table(
    "budget_nodes",
    Column("cluster", name_text(MAX_CLUSTER), nullable=False),
    Column("node", name_text(), nullable=False),
    Column("time", REAL, nullable=False),
    Column("body", long_text(), nullable=False),
    PrimaryKeyConstraint("cluster", "node"),
)

# The energy of a node in one period of time; see `slurm_energy.node_period`.
node_periods: Final = define_table(
    "node_periods",
    row_id(),
    Column("period_id", name_text(), nullable=False, unique=True),
    Column("cluster", name_text(MAX_CLUSTER), nullable=False),
    Column("node", name_text(), nullable=False),
    Column("start", INTEGER, nullable=False),
    Column("end", INTEGER, nullable=False),
    Column("late_seconds", REAL, nullable=False),
    Column("uncertain_seconds", REAL, nullable=False),
    Column("received", REAL, nullable=False),
    Column("extra", long_text(), nullable=False),
    UniqueConstraint("cluster", "node", "start"),
    Index("node_periods_end", "end"),
)

# Its division: a row per job, and one each for idle and unattributed energy, with job and restart count 0.
# NULL stands for unknown energy; `total_uj` is the sum of the others. The rows of a period add up to the
# measured energy. A sum over many nodes and months may exceed 64 bits: add whole joules and remainders apart.
periods: Final = define_table(
    "periods",
    Column("cluster", name_text(MAX_CLUSTER), nullable=False),
    Column("node", name_text(), nullable=False),
    Column("start", INTEGER, nullable=False),
    Column("end", INTEGER, nullable=False),
    Column("kind", name_text(16), nullable=False),
    Column("job_id", INTEGER, nullable=False),
    Column("restart_count", INTEGER, nullable=False),
    Column("uid", INTEGER),
    Column("cpu_uj", INTEGER),
    Column("dram_uj", INTEGER),
    Column("gpu_uj", INTEGER),
    Column("other_uj", INTEGER),
    Column("total_uj", INTEGER, nullable=False),
    Column("usage_group", INTEGER),
    PrimaryKeyConstraint("cluster", "node", "start", "kind", "job_id", "restart_count"),
    Index("periods_job", "cluster", "job_id", "start"),
)

grid_series: Final = define_table(
    "grid_series",
    Column("cluster", name_text(MAX_CLUSTER), nullable=False),
    Column("quantity", name_text(16), nullable=False),
    Column("provider", name_text(32), nullable=False),
    Column("zone", name_text(64), nullable=False),
    Column("unit", name_text(16), nullable=False),
    Column("start", REAL, nullable=False),
    Column("end", REAL, nullable=False),
    Column("value", REAL, nullable=False),
    Column("fetched", REAL, nullable=False),
    PrimaryKeyConstraint("cluster", "quantity", "provider", "zone", "unit", "start"),
    Index("grid_series_end", "quantity", "end"),
)

quotas: Final = define_table(
    "quotas",
    Column("cluster", name_text(MAX_CLUSTER), nullable=False),
    Column("account", name_text(), nullable=False),
    Column("user", name_text(), nullable=False),
    Column("resource", name_text(16), nullable=False),
    Column("period", name_text(16), nullable=False),
    Column("start", REAL),
    Column("end", REAL),
    Column("amount", REAL, nullable=False),
    Column("unit", name_text(16), nullable=False),
    Column("warn_percent", REAL),
    Column("hold_percent", REAL),
    Column("actor", name_text(), nullable=False),
    Column("time", REAL, nullable=False),
    Column("reason", long_text(), nullable=False),
    PrimaryKeyConstraint("cluster", "account", "user", "resource", "period"),
)

quota_changes: Final = define_table(
    "quota_changes",
    row_id(),
    Column("cluster", name_text(MAX_CLUSTER), nullable=False),
    Column("time", REAL, nullable=False),
    Column("actor", name_text(), nullable=False),
    Column("account", name_text(), nullable=False),
    Column("user", name_text(), nullable=False),
    Column("why", long_text(), nullable=False),
    Index("quota_changes_time", "cluster", "time"),
)
