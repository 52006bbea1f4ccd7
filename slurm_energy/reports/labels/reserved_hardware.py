"""Hardware that a job reserved, derived from its records.

The reserved hardware determines which part of the hardware's embodied emissions the job is charged with.
"""

from __future__ import annotations

from slurm_energy.grid.footprint import Reservation
from slurm_energy.reports.usage import JobUsage


def reservation_of(usage: JobUsage) -> Reservation:
    """Return the node-seconds, CPU-seconds and GPU-seconds that a job or step reserved."""
    times = [(record, record.end - record.start) for record in usage.records]
    cpu_seconds = None
    if all(record.cpus is not None for record, _ in times):
        cpu_seconds = sum((record.cpus or 0) * seconds for record, seconds in times)
    return Reservation(
        node_seconds=sum(seconds for _, seconds in times),
        gpu_seconds=sum(len(record.gpus) * seconds for record, seconds in times),
        cpu_seconds=cpu_seconds,
    )
