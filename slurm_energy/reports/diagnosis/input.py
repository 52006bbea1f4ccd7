"""Collection of all data about a job that its diagnosis uses.

The data is energy records, power traces and observations of the nodes. The result is one `JobObservation`.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterator, Sequence
from typing import Any, Final

from slurm_energy.config import Config
from slurm_energy.diagnosis.json_codec import node_from_json
from slurm_energy.diagnosis.observation import (
    JobObservation,
    LostRun,
    NodeObservation,
    ObservedAllocation,
)
from slurm_energy.diagnosis.signals import ObservedSeries
from slurm_energy.errors import UsageError
from slurm_energy.records import EnergyRecord
from slurm_energy.reports.labels.settings import split_setting
from slurm_energy.reports.trace import decode_trace
from slurm_energy.reports.usage import MEASURED_COMPONENTS, JobUsage, component_type
from slurm_energy.slurm.exit_status import ExitStatus

_RUNNING: Final = ("RUNNING", "COMPLETING", "SUSPENDED")
_POWER_TRACE_SOURCE: Final = "power trace"


def job_observation(job: JobUsage, documents: Sequence[Any], config: Config) -> JobObservation:
    """Return all known data of a job.

    Args:
        job: the job with its records and power traces.
        documents: node observations as JSON. A document that cannot be read is left out.
        config: configuration of the site, which contains the idle power of nodes.
    """
    observed = []
    for document in documents:
        with contextlib.suppress(UsageError):
            observed.append(node_from_json(document))
    return observation_of(job, observed, config)


def observation_of(job: JobUsage, observed: Sequence[NodeObservation], config: Config) -> JobObservation:
    """Return everything that is known about a job as input for its diagnosis.

    Args:
        job: the job with its records and power traces.
        observed: the parsed node observations of the job.
        config: configuration of the site.
    """
    by_node = {node.node: node for node in observed}
    nodes = []
    for record in job.records:
        node = by_node.get(record.node, NodeObservation(record.node))
        series = (*node.series, *_power_series(job, record.node))
        nodes.append(NodeObservation(record.node, series, node.ranks))
    return JobObservation(_context(job, config), tuple(nodes))


def _power_series(job: JobUsage, node: str) -> Iterator[ObservedSeries]:
    data = job.traces.get(node)
    if data is None:
        return
    trace = decode_trace(data)
    for part, watts in trace.watts.items():
        values = array("d", watts)
        yield ObservedSeries(
            "power_watts", part, node, _POWER_TRACE_SOURCE, trace.start, trace.interval_s, values
        )


def _context(job: JobUsage, config: Config) -> ObservedAllocation:
    records, state = job.records, (job.job.state or "").partition(" ")[0]
    return ObservedAllocation(
        job_id=job.first.job_id,
        start_s=job.start,
        elapsed_s=job.elapsed_s,
        state=None if not state or state in _RUNNING else state,
        exit_status=ExitStatus.from_text(job.job.exit_code),
        step_exit_status=ExitStatus.from_text(job.job.step_exit_code),
        is_interactive=_is_interactive(job),
        nodes=job.nodes,
        cpus=job.cpus,
        gpus={record.node: record.gpus for record in records if record.gpus},
        restart_count=job.first.restart_count,
        lost_runs=tuple(_lost_run(run) for run in job.earlier_runs),
        energy_joules={record.node: _energies(record) for record in records},
        missing_nodes=job.missing_nodes,
        unknown_energy={record.node: names for record in records if (names := _unknown_energy(record))},
        idle_watts={record.node: _idle_watts(record, config) for record in records},
        limit_watts={record.node: _limits(record) for record in records},
        max_limit_watts={record.node: _max_limits(record) for record in records},
        settings={
            record.node: tuple((s.setting, s.requested, s.applied) for s in record.applied)
            for record in records
        },
    )


def _lost_run(run: JobUsage) -> LostRun:
    state = (run.job.state or "").partition(" ")[0] or None
    return LostRun(state, run.start, run.elapsed_s, run.energy_joules)


def _is_interactive(job: JobUsage) -> bool | None:
    """Return whether the job has no batch step; None if the steps are unknown."""
    names = {step.first.step for step in job.steps}
    return "batch" not in names if names else None


def _energies(record: EnergyRecord) -> dict[str, float]:
    return {c.name: c.energy_joules for c in record.components if c.energy_joules is not None}


def _unknown_energy(record: EnergyRecord) -> tuple[str, ...]:
    """Return the names of the components whose energy is missing from the energy of a record.

    The result is empty if the whole node was measured. The component `other` is not considered.
    Many nodes cannot measure it, and no report calls the energy of these nodes incomplete.
    """
    energies = _energies(record)
    if "node" in energies:
        return ()
    unknown = (c.name for c in record.components if c.energy_joules is None)
    names = tuple(name for name in unknown if component_type(name) in MEASURED_COMPONENTS)
    return names if energies or names else ("cpu",)  # every node has processors


def _idle_watts(record: EnergyRecord, config: Config) -> dict[str, float]:
    watts = config.for_node(record.node).agent.idle_watts
    parts = {name: value for name, value in watts.items() if name != "gpu"}
    if "gpu" in watts:
        parts |= dict.fromkeys((f"gpu[{index}]" for index in record.gpus), watts["gpu"])
    return parts


def _max_limits(record: EnergyRecord) -> dict[str, float]:
    return {d.name: d.max_cap_watts for d in record.devices if d.max_cap_watts is not None}


def _limits(record: EnergyRecord) -> dict[str, float]:
    """Return, for each device, the power limit in watts that was in force during the job."""
    limits = _max_limits(record)
    for setting in record.applied:
        setting_type, instance = split_setting(setting.setting)
        if not setting_type.endswith("power_limit") or setting_type.startswith("powercap"):
            continue
        name = f"gpu[{instance.removeprefix('gpu')}]"
        with contextlib.suppress(TypeError, ValueError):
            limits[name] = float(str(setting.applied).removesuffix("W"))
    return limits
