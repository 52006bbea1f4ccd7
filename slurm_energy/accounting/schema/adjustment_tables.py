"""Database tables of adjustments of programs.

The tables store the permissions of users, the trials, and the runs that took part in trials.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Boolean, Column, Index, PrimaryKeyConstraint

from slurm_energy.accounting.schema.tables import (
    INTEGER,
    MAX_CLUSTER,
    REAL,
    define_table,
    long_text,
    name_text,
    row_id,
)

# Adjustments that a user permits for policy `auto`; `body` is the text of `AdjustmentPermissions`.
adjustment_permissions: Final = define_table(
    "adjustment_permissions",
    Column("cluster", name_text(MAX_CLUSTER), nullable=False),
    Column("uid", INTEGER, nullable=False),
    Column("body", long_text(), nullable=False),
    Column("updated", REAL, nullable=False),
    PrimaryKeyConstraint("cluster", "uid"),
)

# Adjustments that are tried, kept or undone together. `decided` is null while the trial is pending.
adjustment_trials: Final = define_table(
    "adjustment_trials",
    row_id(),
    Column("cluster", name_text(MAX_CLUSTER), nullable=False),
    Column("uid", INTEGER, nullable=False),
    Column("workload", name_text(), nullable=False),
    Column("state", name_text(16), nullable=False),
    Column("source", name_text(16), nullable=False),
    Column("created", REAL, nullable=False),
    Column("decided", REAL),
    Column("body", long_text(), nullable=False),
    Index("adjustment_trials_program", "uid", "workload"),
    Index("adjustment_trials_state", "state"),
)

# Values that were offered to a run of a job, and the names of those that its program requested. `trial` is
# null for a run outside a trial.
adjustment_runs: Final = define_table(
    "adjustment_runs",
    Column("cluster", name_text(MAX_CLUSTER), nullable=False),
    Column("job_id", INTEGER, nullable=False),
    Column("restart_count", INTEGER, nullable=False),
    Column("uid", INTEGER, nullable=False),
    Column("workload", name_text(), nullable=False),
    Column("trial", INTEGER),
    Column("submitted", Boolean, nullable=False),
    Column("offered", long_text(), nullable=False),
    Column("requested", long_text(), nullable=False),
    Column("created", REAL, nullable=False),
    PrimaryKeyConstraint("cluster", "job_id", "restart_count", "uid"),
    Index("adjustment_runs_created", "created"),
)

ALL: Final = (adjustment_permissions, adjustment_trials, adjustment_runs)
