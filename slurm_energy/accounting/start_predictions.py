"""Predicted run times of started jobs, stored until the finished run enters the history."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection

from slurm_energy.accounting.engine import execute_many, transaction


def save(connection: Connection, cluster: str, started: Iterable[tuple[int, float, float]]) -> None:
    """Store the predicted run times of started jobs.

    Args:
        connection: connection of the writing thread.
        cluster: Slurm's ClusterName.
        started: job id, start in Unix seconds and predicted run time in seconds of each job.
    """
    with transaction(connection):
        execute_many(
            connection,
            "INSERT OR REPLACE INTO predictions (cluster, job_id, start, predicted_s) VALUES (?, ?, ?, ?)",
            [(cluster, *one) for one in started],
        )


def since(connection: Connection, cluster: str, start: float) -> list[tuple[int, float, float]]:
    """Return the stored predictions for jobs that started at `start` (Unix seconds) or later.

    Returns:
        Job id, start in Unix seconds and predicted run time in seconds of each job of `cluster`.
    """
    rows = connection.exec_driver_sql(
        "SELECT job_id, start, predicted_s FROM predictions WHERE cluster = ? AND start >= ?",
        (cluster, start),
    )
    return [(job_id, started, predicted_s) for job_id, started, predicted_s in rows]
