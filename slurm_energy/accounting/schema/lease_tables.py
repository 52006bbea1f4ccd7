"""Database tables of the lease of the active controller, see `controller_lease`.

They are a part of the schema in `tables`.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Boolean, Column

from slurm_energy.accounting.schema.tables import INTEGER, REAL, define_table, long_text, name_text

# The only row has the id 1. Times are seconds of the clock of the database server. The lease is free if
# `instance` is null. `session` is the database session that writes for the holder.
controller_lease: Final = define_table(
    "controller_lease",
    Column("id", INTEGER, primary_key=True, autoincrement=False),
    Column("token", INTEGER, nullable=False),
    Column("holder", name_text()),
    Column("instance", name_text(32)),
    Column("session", INTEGER),
    Column("since", REAL, nullable=False),
    Column("renewed", REAL, nullable=False),
    Column("successor", name_text()),
    Column("policy_lines", long_text(), nullable=False),
)

# Controllers that run or have run; `beside_slurmctld` is null if the controller does not know.
controllers: Final = define_table(
    "controllers",
    Column("name", name_text(), primary_key=True),
    Column("release", name_text(64), nullable=False),
    Column("started", REAL, nullable=False),
    Column("seen", REAL, nullable=False),
    Column("ready", Boolean, nullable=False),
    Column("beside_slurmctld", Boolean),
)

ALL: Final = (controller_lease, controllers)
