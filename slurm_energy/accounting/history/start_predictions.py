"""Storage of the predicted run times of started jobs in the database.

A prediction is stored until the finished run enters the history.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, select

from slurm_energy.accounting.engine import transaction
from slurm_energy.accounting.schema.tables import predictions
from slurm_energy.accounting.upserts import insert_or_replace


def save(connection: Connection, cluster: str, started: Iterable[tuple[int, float, float]]) -> None:
    """Store the predicted run times of started jobs, for comparison with the actual ones.

    Args:
        connection: connection of the writing thread.
        cluster: Slurm's ClusterName.
        started: job id, start in Unix seconds and predicted run time in seconds of each job.
    """
    rows = [
        {"cluster": cluster, "job_id": job_id, "start": start, "predicted_s": predicted_s}
        for job_id, start, predicted_s in started
    ]
    with transaction(connection):
        insert_or_replace(connection, predictions, rows)


def since(connection: Connection, cluster: str, start: float) -> list[tuple[int, float, float]]:
    """Return the stored run time predictions of jobs that started at `start` or later.

    Args:
        connection: connection to the database.
        cluster: Slurm's name of the cluster.
        start: Unix seconds.

    Returns:
        Job id, start in Unix seconds and predicted run time in seconds of each job of `cluster`.
    """
    columns = predictions.c
    rows = connection.execute(
        select(columns.job_id, columns.start, columns.predicted_s)
        .where(columns.cluster == cluster, columns.start >= start)
        .order_by(columns.job_id, columns.start)
    )
    return [(job_id, start, predicted_s) for job_id, start, predicted_s in rows]
