"""Definition of the database table `observations`.

A row of the table stores the observation of one job on one node: the sampled signals and the steps
that the job reported.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Column, ForeignKey, Index

from slurm_energy.accounting.schema.tables import INTEGER, REAL, define_table, long_text

observations: Final = define_table(
    "observations",
    Column(
        "record", INTEGER, ForeignKey("records.id", ondelete="CASCADE"), primary_key=True, autoincrement=False
    ),
    Column("end", REAL, nullable=False),
    Column("body", long_text(), nullable=False),
    Index("observations_end", "end"),
)

ALL: Final = (observations,)
