"""Removing what the site does not want to keep: old power traces, a few at a time."""

from __future__ import annotations

import sqlite3
from typing import Final

from slurm_energy.accounting.database import transaction

BATCH: Final = 500  # keeps the writing thread free for deliveries in between


def drop_old_traces(connection: sqlite3.Connection, before: float) -> int:
    """Delete at most `BATCH` traces that ended before a Unix second; return how many.

    Their records stay. The space is used again by new traces; `VACUUM` gives it back to the file system.
    """
    with transaction(connection):
        done = connection.execute(
            'DELETE FROM traces WHERE record IN (SELECT record FROM traces WHERE "end" < ? LIMIT ?)',
            [before, BATCH],
        )
    return done.rowcount
