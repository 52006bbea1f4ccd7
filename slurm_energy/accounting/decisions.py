"""What the queue engine changed about jobs, for the audit: kept in the database, shown with the job."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from slurm_energy.accounting.database import transaction

SHAPE: Final = "shape"
REQUEUE: Final = "requeue"
_CHUNK: Final = 500
_SAME_SUBMIT_S: Final = 1.5  # sacct and slurmctld round to seconds


@dataclass(frozen=True, slots=True)
class Decision:
    """One change.

    Attributes:
        job_id, submit: which job; times are Unix seconds.
        time: when Slurm took it.
        kind: `shape`: it was given other GPUs; `requeue`: it made way for another job.
        why: one line for people.
        details: what belongs to the kind. `shape`: `offered` (list), `chosen`, and `asked` and `excluded`,
            what Slurm had before. `requeue`: `for_job`, `lost_joules`.
    """

    job_id: int
    submit: float
    time: float
    kind: str
    why: str
    details: dict[str, Any] = field(default_factory=dict)


def save(connection: sqlite3.Connection, cluster: str, made: Iterable[Decision]) -> None:
    """Keep decisions."""
    with transaction(connection):
        connection.executemany(
            "INSERT INTO decisions (cluster, job_id, submit, time, kind, why, details)"
            " VALUES (?, ?, ?, ?, ?, ?, ?)",
            [(cluster, d.job_id, d.submit, d.time, d.kind, d.why, json.dumps(d.details)) for d in made],
        )


def since(connection: sqlite3.Connection, cluster: str, time: float) -> list[Decision]:
    """Return decisions made after a Unix second, oldest first: for a controller that starts."""
    rows = connection.execute(
        "SELECT job_id, submit, time, kind, why, details FROM decisions"
        " WHERE cluster = ? AND time >= ? ORDER BY time, id",
        [cluster, time],
    )
    return [
        Decision(job_id, submit, time, kind, why, json.loads(details))
        for job_id, submit, time, kind, why, details in rows
    ]


def of_records(connection: sqlite3.Connection, record_ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return what was decided about the jobs of these records, oldest first, as `GET /v1/jobs/ID` shows it.

    Jobs that Slurm has not told of yet have none.
    """
    found: dict[int, dict[str, Any]] = {}
    for first in range(0, len(record_ids), _CHUNK):
        ids = list(record_ids[first : first + _CHUNK])
        rows = connection.execute(
            "SELECT DISTINCT d.id, d.job_id, d.submit, d.time, d.kind, d.why, d.details FROM records r"
            " JOIN jobs j ON j.id = r.job"
            " JOIN decisions d ON d.cluster = j.cluster AND d.job_id = j.job_id"
            f" AND abs(d.submit - j.submit) < {_SAME_SUBMIT_S} WHERE r.id IN ({','.join('?' * len(ids))})",
            ids,
        )
        for row in rows:
            found[row[0]] = {
                "job_id": row[1],
                "submit": row[2],
                "time": row[3],
                "kind": row[4],
                "why": row[5],
                **json.loads(row[6]),
            }
    return sorted(found.values(), key=lambda one: (one["time"], one["job_id"]))


def for_owners(made: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return decisions as `of_records` gives them without the numbers of other people's jobs."""
    return [{key: value for key, value in one.items() if key != "for_job"} for one in made]


def unnamed_jobs(made: Iterable[Mapping[str, Any]]) -> int:
    """Return how many jobs `for_owners` leaves out."""
    return len({one["for_job"] for one in made if one.get("for_job") is not None})


def drop_before(connection: sqlite3.Connection, before: float) -> int:
    """Delete decisions made before a Unix second; return how many."""
    with transaction(connection):
        return connection.execute("DELETE FROM decisions WHERE time < ?", [before]).rowcount
