"""Computation of how long a job waits for CPUs.

The causes are the job's own tasks, or other work on its nodes.
"""

from __future__ import annotations

import math

from slurm_energy.diagnosis.job_view import JobView
from slurm_energy.diagnosis.observation import NodeObservation
from slurm_energy.diagnosis.series_means import between, mean_of


def ready_tasks_per_cpu(view: JobView) -> float | None:
    """Return how many tasks run or wait for a CPU on average, per CPU of the job; None if unknown."""
    waiting, busy = view.mean("cpu_waiting_tasks"), view.mean("cpu_busy_cores")
    allocated = view.mean("cpu_allocated_cores")
    return None if waiting is None or busy is None or not allocated else (waiting + busy) / allocated


def other_load(view: JobView, node_name: str, window: tuple[float, float]) -> float | None:
    """Return the percentage of a time window in which other work on a node made the job's tasks wait.

    The tasks wait for CPUs.

    Args:
        view: facts about the job.
        node_name: node of the job.
        window: start and end, Unix seconds.

    Returns:
        The percentage; None if unknown. Waits that arise because the job has more tasks than CPUs are
        left out.
    """
    node = next((node for node in view.observation.nodes if node.node == node_name), None)
    if node is None:
        return None
    names = ("cpu_busy_cores", "cpu_allocated_cores", "cpu_waiting_tasks", "cpu_pressure_percent")
    busy, cpus, waiting, pressure = (_mean_in(view, node, name, window) for name in names)
    if busy is None or not cpus:
        return None
    if waiting is not None:
        ready = busy + waiting
        return 100 * max(0.0, waiting - max(0.0, ready - cpus)) / ready if ready > 0 else 0.0
    is_saturated = 100 * busy / cpus >= view.threshold("cpu_saturated")
    return 0.0 if pressure is not None and is_saturated else pressure


def served_share(view: JobView) -> float:
    """Return the mean fraction of the job's ready tasks that have a CPU; 1 if unknown.

    A task is ready if it runs or waits for a CPU.

    The result estimates the effect of other work on the node. Processes of the job wait for each other.
    Without the other work, their waiting times would shrink to about this fraction.
    """
    waiting, busy = view.mean("cpu_waiting_tasks"), view.mean("cpu_busy_cores")
    return busy / (busy + waiting) if waiting is not None and busy else 1.0


def is_crowded(view: JobView) -> bool:
    """Return whether other work takes CPUs from the job on every node while the job is active."""
    window, nodes = view.active_window, view.observation.nodes
    if window is None or not nodes:
        return False
    limit = view.threshold("other_load")
    return all((other_load(view, node.node, window) or 0.0) >= limit for node in nodes)


def contended_s(view: JobView) -> float | None:
    """Return how many seconds other work on the nodes delayed a job without GPUs; None if unknown.

    The other work takes CPUs that the job needs. While at least one task of the job is ready to run, the
    progress of the job is proportional to the fraction of its ready tasks that have a CPU. Waits that arise
    because the job has more tasks than CPUs do not count. The job waits for its slowest node.
    """
    if view.gpus or not view.observation.nodes:
        return None
    shares = [_contended_share(view, node) for node in view.observation.nodes]
    known = [share for share in shares if share is not None]
    return max(known) * view.elapsed_s if len(known) == len(shares) else None


def _contended_share(view: JobView, node: NodeObservation) -> float | None:
    busy, waiting = view.node_series(node, "cpu_busy_cores"), view.node_series(node, "cpu_waiting_tasks")
    cpus = view.node_series(node, "cpu_allocated_cores")
    if busy is None or waiting is None or cpus is None:
        return None
    if (busy.start_s, busy.interval_s) != (waiting.start_s, waiting.interval_s):
        return None
    limit = max(cpus.known())
    delays = []
    for running, waits in zip(busy.values, waiting.values, strict=False):
        if not math.isnan(running + waits):
            usable = min(running + waits, limit)
            delays.append(max(0.0, usable - running) / max(1.0, usable))
    return mean_of(delays)


def _mean_in(view: JobView, node: NodeObservation, signal: str, window: tuple[float, float]) -> float | None:
    """Return the mean of a job's signal on a node over a time window.

    All intervals of the series that overlap the window are used.
    """
    series = view.node_series(node, signal)
    if series is None:
        return None
    half = series.interval_s / 2
    return mean_of(between(series, window[0] - half, window[1] + half))
