"""Tables of the sums of `senergy report`, see `usage_rollup`; part of the schema of `tables`."""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, ForeignKey, Index, PrimaryKeyConstraint

from slurm_energy.accounting.schema.tables import (
    INTEGER,
    MAX_CLUSTER,
    REAL,
    define_table,
    long_text,
    name_text,
    row_id,
)

# Attributes by which reports group; an empty text means none or unknown.
usage_groups: Final = define_table(
    "usage_groups",
    row_id(),
    Column("digest", name_text(64), nullable=False, unique=True),
    Column("cluster", name_text(MAX_CLUSTER), nullable=False),
    Column("kind", name_text(16), nullable=False),
    Column("account", name_text(), nullable=False),
    Column("user", name_text(), nullable=False),
    Column("uid", INTEGER),
    Column("qos", name_text(), nullable=False),
    Column("partition", name_text(), nullable=False),
    Column("policy", name_text(), nullable=False),
    Column("tag", long_text(), nullable=False),
    Column("gpu_kind", long_text(), nullable=False),
    Column("cpus", INTEGER),
)


def _sum_columns() -> list[Column[int] | PrimaryKeyConstraint]:
    names = ("start", "end")
    sums = (
        *("total_uj", "cpu_uj", "dram_uj", "gpu_uj", "other_uj"),
        *("cpu_rows", "dram_rows", "gpu_rows", "other_rows"),
        *("cpu_seconds", "gpu_seconds", "node_seconds"),
    )
    return [
        *(Column(name, INTEGER, nullable=False) for name in names),
        Column("usage_group", INTEGER, ForeignKey("usage_groups.id"), nullable=False),
        *(Column(name, INTEGER, nullable=False) for name in sums),
        PrimaryKeyConstraint("start", "end", "usage_group"),
    ]


# Sums over the rows of `periods` with the same start, end and group, and CPU and GPU time by hour.
usage_sums: Final = define_table("usage_sums", *_sum_columns())

# The same, with all periods inside one UTC day added up. A period of several days has a row of its own.
usage_days: Final = define_table("usage_days", *_sum_columns())

HOUR_COLUMNS: Final = tuple(f"hour_{hour:02}_uj" for hour in range(24))
"""Columns of `usage_day_hours`: the energy in each hour of a UTC day in microjoules."""

# `total_uj` of the periods that are whole UTC hours, with one row per UTC day and group. Emissions and cost
# are computed from it, because it has up to 24 times fewer rows than `usage_sums`.
usage_day_hours: Final = define_table(
    "usage_day_hours",
    Column("start", INTEGER, nullable=False),
    Column("usage_group", INTEGER, ForeignKey("usage_groups.id"), nullable=False),
    *(Column(name, INTEGER, nullable=False) for name in HOUR_COLUMNS),
    PrimaryKeyConstraint("start", "usage_group"),
    by_key=True,
)

# The CPU and GPU time that is counted for each run.
usage_runs: Final = define_table(
    "usage_runs",
    Column("job", INTEGER, ForeignKey("jobs.id"), primary_key=True, autoincrement=False),
    Column("usage_group", INTEGER, ForeignKey("usage_groups.id"), nullable=False),
    Column("start", INTEGER, nullable=False),
    Column("end", INTEGER, nullable=False),
    Column("cpus", INTEGER, nullable=False),
    Column("gpus", INTEGER, nullable=False),
    Column("suspended_s", INTEGER, nullable=False, server_default="0"),
    Index("usage_runs_end", "end"),
)

# Jobs whose records or facts changed after they were counted.
usage_changed_jobs: Final = define_table(
    "usage_changed_jobs",
    Column("cluster", name_text(MAX_CLUSTER), nullable=False),
    Column("job_id", INTEGER, nullable=False),
    PrimaryKeyConstraint("cluster", "job_id"),
)

# Jobs that used energy in a period and whose facts are unknown.
usage_unknown_jobs: Final = define_table(
    "usage_unknown_jobs",
    Column("cluster", name_text(MAX_CLUSTER), nullable=False),
    Column("job_id", INTEGER, nullable=False),
    Column("restart_count", INTEGER, nullable=False),
    Column("start", INTEGER, nullable=False),
    Column("end", INTEGER, nullable=False),
    Column("since", REAL, nullable=False),
    PrimaryKeyConstraint("cluster", "job_id", "restart_count"),
    Index("usage_unknown_jobs_since", "since"),
)

# First and last time for which each node delivered energy.
usage_nodes: Final = define_table(
    "usage_nodes",
    Column("cluster", name_text(MAX_CLUSTER), nullable=False),
    Column("node", name_text(), nullable=False),
    Column("start", INTEGER, nullable=False),
    Column("end", INTEGER, nullable=False),
    PrimaryKeyConstraint("cluster", "node"),
)

# Numbers such as the last counted row of `node_periods`.
usage_state: Final = define_table(
    "usage_state",
    Column("name", name_text(16), primary_key=True),
    Column("value", INTEGER, nullable=False),
)

CREATED_BY_STEP_9: Final = (
    *(usage_groups, usage_sums, usage_days, usage_runs, usage_changed_jobs, usage_unknown_jobs),
    *(usage_nodes, usage_state),
)
ALL: Final = (*CREATED_BY_STEP_9, usage_day_hours)
