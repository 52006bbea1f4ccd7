"""Metrics of senergyctld for Prometheus: deliveries of nodes, power budgets, and the queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import Connection

from slurm_energy import __version__
from slurm_energy.controller.budgets.facts import BudgetStatus
from slurm_energy.controller.records.store import Store
from slurm_energy.openmetrics.exposition import MetricFamily, MetricKind, version_family

_LAST_DELIVERIES: Final = "SELECT cluster, node, last_received, last_end FROM nodes"
_BUDGET_METRICS: Final = (
    ("budget_watts", "Limit of a power budget.", "limit_watts"),
    ("budget_measured_watts", "Measured power under a budget.", "measured_watts"),
    ("budget_committed_watts", "Power under a budget that the limits in force permit.", "committed_watts"),
    ("budget_capped_watts", "Power that a budget takes from jobs.", "capped_watts"),
    ("budget_headroom_watts", "Power that new jobs may add under a budget.", "headroom_watts"),
    ("budget_silent_nodes", "Nodes under a budget that do not report.", "silent_nodes"),
    ("budget_distrusted_nodes", "Nodes under a budget whose reports are not trusted.", "distrusted_nodes"),
)
_QUEUE_METRICS: Final = (
    ("pending_jobs", "Jobs that wait, at the last ranking.", "pending"),
    ("ranked_jobs", "Jobs that the last ranking ordered.", "ranked"),
    ("ranking_seconds", "Duration of the last ranking.", "cycle_s"),
    ("ranking_timestamp_seconds", "Unix time of the last ranking.", "computed"),
)


class ClusterMetrics:
    """Metrics of senergyctld for Prometheus.

    Args:
        store: the database.
        status: function that returns the status of senergyctld, by part of the program.
        budgets: function that returns the states of all power budgets.
        lease: function that returns the metrics of the lease of the active controller.
        findings: function that returns the metrics of the findings of running jobs.
    """

    def __init__(
        self,
        store: Store,
        status: Callable[[], Mapping[str, Any]],
        budgets: Callable[[], Sequence[BudgetStatus]],
        lease: Callable[[], Sequence[MetricFamily]] = tuple,
        findings: Callable[[], Iterable[MetricFamily]] = tuple,
    ) -> None:
        self._store, self._status, self._budgets, self._lease = store, status, budgets, lease
        self._findings = findings

    async def collect(self) -> Sequence[MetricFamily]:
        """Return the current metrics.

        Raises:
            UnavailableError: the database does not answer.
        """
        nodes = await self._store.read(_last_deliveries)
        status = self._status()
        return [
            version_family(__version__),
            *_deliveries(nodes),
            *_budget_families(self._budgets(), status["budget"]),
            *_queue(status),
            *self._lease(),
            *self._findings(),
        ]


def _last_deliveries(connection: Connection) -> list[tuple[str, str, float, float]]:
    return [tuple(row) for row in connection.exec_driver_sql(_LAST_DELIVERIES)]


def _deliveries(nodes: Sequence[tuple[str, str, float, float]]) -> list[MetricFamily]:
    labels = ("cluster", "node")
    received = MetricFamily(
        "node_last_delivery_timestamp_seconds", "Unix time of a node's last delivery.", labels=labels
    )
    ends = MetricFamily(
        "node_last_record_end_timestamp_seconds",
        "End of the last job of a node with a record.",
        labels=labels,
    )
    for cluster, node, last_received, last_end in nodes:
        received.add(last_received, cluster, node)
        ends.add(last_end, cluster, node)
    return [received, ends]


def _budget_families(budgets: Sequence[BudgetStatus], status: Mapping[str, Any]) -> list[MetricFamily]:
    families = []
    for name, meaning, attribute in _BUDGET_METRICS:
        family = MetricFamily(name, meaning, labels=("budget",))
        for budget in budgets:
            family.add(getattr(budget, attribute), budget.name)
        families.append(family)
    cycle = MetricFamily("budget_cycle_seconds", "Duration of the last decision about power budgets.")
    cycle.add(status["cycle_s"])
    return [*families, cycle]


def _queue(status: Mapping[str, Any]) -> list[MetricFamily]:
    families = []
    for name, meaning, key in _QUEUE_METRICS:
        family = MetricFamily(name, meaning)
        family.add(status["priority"][key])
        families.append(family)
    runs = MetricFamily("learned_runs", "Finished runs that were learned from.", MetricKind.COUNTER)
    runs.add(status["history"]["runs"])
    return [*families, runs]
