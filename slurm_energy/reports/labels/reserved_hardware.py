"""Computation of the hardware that a job reserved, from the job's records.

The reserved hardware determines the share of the emissions from the hardware's production (embodied
emissions) that the job is charged with.
"""

from __future__ import annotations

from slurm_energy.grid.footprint import Reservation
from slurm_energy.reports.usage import JobUsage


def reservation_of(usage: JobUsage) -> Reservation:
    """Return the hardware time that a job or step reserved: node-, CPU- and GPU-seconds."""
    times = [(record, record.end - record.start) for record in usage.records]
    cpu_seconds = None
    if all(record.cpus is not None for record, _ in times):
        cpu_seconds = sum((record.cpus or 0) * seconds for record, seconds in times)
    return Reservation(
        node_seconds=sum(seconds for _, seconds in times),
        gpu_seconds=sum(len(record.gpus) * seconds for record, seconds in times),
        cpu_seconds=cpu_seconds,
    )
