"""What users and accounts consumed: energy and GPUs of finished jobs, record by record as they arrived.

How consumption fades and what it is compared with is the priority room's matter.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final, NamedTuple

CHUNK: Final = 20_000
MAX_IDS: Final = 500

_COLUMNS: Final = """
    SELECT r.id, coalesce(r.user, cast(r.uid AS TEXT)), coalesce(r.account, ''), r.start, r."end",
        r.energy_joules, coalesce(json_array_length(r.body, '$.gpus'), 0), r.job_id, r.restart_count,
        r.job IS NOT NULL
    FROM records r
"""


class ConsumptionRecord(NamedTuple):
    """What one job used on one node.

    Attributes:
        row: of the database; later records have higher numbers.
        user: name, or uid as text where it is not known.
        account: empty where not known.
        start, end: Unix seconds.
        energy_joules: None: not known.
        gpus: number of GPUs.
        job_id: Slurm's number.
        restart_count: how often the job had been requeued before this run.
        settled: Slurm told whose it is; otherwise user and account may still come.
    """

    row: int
    user: str
    account: str
    start: float
    end: float
    energy_joules: float | None
    gpus: int
    job_id: int
    restart_count: int
    settled: bool


def read_consumption(connection: sqlite3.Connection, after: int, since: float) -> list[ConsumptionRecord]:
    """Return records of whole jobs that arrived after a row and ended after a Unix second.

    At most `CHUNK`, the oldest rows first; ask again from the last one's row on until fewer come.
    """
    rows = connection.execute(
        f"""{_COLUMNS} WHERE r.id > ? AND r.step = '' AND r."end" >= ? ORDER BY r.id LIMIT ?""",
        [after, since, CHUNK],
    )
    return [_consumed(row) for row in rows]


def reread_consumption(connection: sqlite3.Connection, rows: Sequence[int]) -> list[ConsumptionRecord]:
    """Return these records as they are now, `MAX_IDS` at most; those that are deleted are left out."""
    marks = ",".join("?" * len(rows))
    return [_consumed(row) for row in connection.execute(f"{_COLUMNS} WHERE r.id IN ({marks})", list(rows))]


def _consumed(row: tuple[int, str, str, float, float, float | None, int, int, int, int]) -> ConsumptionRecord:
    return ConsumptionRecord(*row[:9], settled=bool(row[9]))
