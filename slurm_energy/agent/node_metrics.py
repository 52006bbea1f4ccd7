"""Metrics of one node for Prometheus, from the state of the agent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from slurm_energy import __version__
from slurm_energy.agent.budget.limited_devices import LimitedDevice, limited_devices
from slurm_energy.agent.jobs.job_manager import JobManager
from slurm_energy.agent.metering.attribution import OTHER
from slurm_energy.agent.state.state_directory import StateDirectory
from slurm_energy.devices.discovery import NodeDevices
from slurm_energy.openmetrics.exposition import MetricFamily, MetricKind, version_family

_KINDS = (
    ("node", "measured", "Energy of the node since its state directory was created."),
    ("jobs", "jobs", "Part of the node's energy that is charged to jobs."),
    ("idle", "idle", "Part of the node's energy that is the idle energy of resources without jobs."),
    ("unattributed", "unattributed", "Part of the node's energy of processes outside jobs."),
)


class NodeMetrics:
    """Metrics of a node.

    Args:
        jobs: the job manager.
        devices: devices of the node.
        state: state directory with the journal of settings.
        work: runs a function in the worker thread of the job manager.
    """

    def __init__(
        self,
        jobs: JobManager,
        devices: NodeDevices,
        state: StateDirectory,
        work: Callable[..., Awaitable[Any]],
    ) -> None:
        self._jobs, self._devices, self._state, self._work = jobs, devices, state, work
        self._limited: Sequence[LimitedDevice] | None = None
        node_source = ", ".join(dict.fromkeys(counter.source for counter in devices.node_counters))
        self._sources = {counter.component: counter.source for counter in devices.counters}
        self._sources |= {OTHER: node_source} if node_source else {}

    async def collect(self) -> Sequence[MetricFamily]:
        """Return the current metrics."""
        families: Sequence[MetricFamily] = await self._work(self._collect)
        return families

    def _collect(self) -> list[MetricFamily]:
        status, config = self._jobs.status(), self._jobs.config
        return [
            version_family(__version__),
            *self._energy(status),
            *self._limits(status),
            *_delivery(status),
            *(_jobs(status, config.cluster.name) if config.metrics.jobs else ()),
        ]

    def _energy(self, status: Mapping[str, Any]) -> list[MetricFamily]:
        node = status["node"]
        families = []
        for name, kind, meaning in _KINDS:
            labels = ("node", "domain", "source")
            family = MetricFamily(f"{name}_joules", meaning, MetricKind.COUNTER, labels)
            for domain, totals in status["energy_accounts"].items():
                family.add(totals[kind] / 1e6, node, domain, self._sources.get(domain, ""))
            families.append(family)
        power = MetricFamily("node_watts", "Current power of the node by domain.", labels=("node", "domain"))
        for domain, watts in status["watts"].items():
            power.add(watts, node, domain)
        idle = MetricFamily("idle_watts", "Learned idle power by domain.", labels=("node", "domain"))
        for domain, watts in status["idle_watts"].items():
            idle.add(watts, node, domain)
        return [*families, power, idle]

    def _limits(self, status: Mapping[str, Any]) -> list[MetricFamily]:
        if self._limited is None:
            self._limited = limited_devices(self._devices, self._state.journal)
        values = self._devices.read(key for device in self._limited for key in device.limit_keys)
        labels = ("node", "device")
        limits = MetricFamily("power_limit_watts", "Power limit that the device has now.", labels=labels)
        ceilings = MetricFamily(
            "power_ceiling_watts", "Ceiling of a power budget on the device's limit.", labels=labels
        )
        for device in self._limited:
            limits.add(device.limit_watts(values), status["node"], device.name)
        for name, watts in status["budget"]["ceilings_watts"].items():
            ceilings.add(watts, status["node"], name)
        return [limits, ceilings]


def _delivery(status: Mapping[str, Any]) -> list[MetricFamily]:
    figures = (
        ("running_jobs", "Jobs that run on the node.", len(status["jobs"])),
        ("spooled_records", "Records that wait for the controller.", status["spooled"]),
        ("deferred_records", "Records that a newer controller must accept.", status["deferred"]),
        ("rejected_records", "Records that the controller rejected.", status["rejected"]),
        ("unrestored_settings", "Settings that could not be restored.", len(status["unrestored"])),
    )
    families = []
    for name, meaning, value in figures:
        family = MetricFamily(name, meaning, labels=("node",))
        family.add(value, status["node"])
        families.append(family)
    return families


def _jobs(status: Mapping[str, Any], cluster: str) -> list[MetricFamily]:
    labels = ("cluster", "node", "jobid", "domain")
    joules = MetricFamily("job_joules", "Energy of a running job on the node.", MetricKind.COUNTER, labels)
    power = MetricFamily("job_watts", "Current power of a running job on the node.", labels=labels)
    for job in status["jobs"]:
        names = cluster, status["node"], str(job["job_id"])
        for domain, value in job["energy_joules"].items():
            joules.add(value, *names, domain)
        for domain, value in job["watts"].items():
            power.add(value, *names, domain)
    return [joules, power]
