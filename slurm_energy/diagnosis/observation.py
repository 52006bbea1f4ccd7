"""Observations of a job on one node, and of the whole job.

The observations of the whole job include its energy and allocation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from slurm_energy.diagnosis.signals import ObservedSeries
from slurm_energy.diagnosis.steps import RankSteps
from slurm_energy.slurm.exit_status import ExitStatus


@dataclass(frozen=True, slots=True)
class NodeObservation:
    """Signals and steps of a job on one node. `json_codec` converts a node observation from and to JSON.

    Attributes:
        node: name of the node.
        series: series of signals.
        ranks: training steps of each process that reports steps.
    """

    node: str
    series: tuple[ObservedSeries, ...] = ()
    ranks: tuple[RankSteps, ...] = ()


@dataclass(frozen=True, slots=True)
class LostRun:
    """A run of a job that Slurm ended and requeued.

    Attributes:
        state: state in which the run ended, such as PREEMPTED or NODE_FAIL; None if unknown.
        start_s: start, Unix seconds.
        elapsed_s: duration in seconds.
        energy_joules: energy; None if unknown.
    """

    state: str | None
    start_s: float
    elapsed_s: float
    energy_joules: float | None


@dataclass(frozen=True, slots=True)
class ObservedAllocation:
    """Allocation, result and energy of a job. None and absent keys mean unknown.

    Attributes:
        job_id: Slurm's job id.
        state: Slurm's state, such as COMPLETED or FAILED; None for a running job.
        exit_status: exit status of the batch script, or of the command of an interactive job.
        step_exit_status: the worst exit status of the steps.
        start_s: start, Unix seconds.
        elapsed_s: seconds from the start to the end; seconds so far if the job is running.
        is_interactive: whether the job has no batch script.
        nodes: allocated nodes.
        cpus: allocated CPUs of all nodes.
        gpus: indices of the allocated GPUs by node.
        restart_count: number of requeues.
        lost_runs: earlier runs, each ended by a requeue, for which an energy record exists.
        energy_joules: energy by node and component (`cpu`, `dram`, `gpu[0]`, `other`, `node`).
        missing_nodes: number of allocated nodes without an energy record; None if unknown.
        unknown_energy: by node, the processors, memory and GPUs whose energy is unknown and is therefore
            missing from the node's energy. A node whose whole energy was measured is absent.
        idle_watts: power of an idle component by node and component.
        limit_watts: power limit in force by node and component.
        max_limit_watts: power limit that would apply without an energy policy, by node and component.
        settings: by node, one tuple for each setting: name of the setting, requested value and applied value.
    """

    job_id: int
    start_s: float
    elapsed_s: float
    state: str | None = None
    exit_status: ExitStatus | None = None
    step_exit_status: ExitStatus | None = None
    is_interactive: bool | None = None
    nodes: tuple[str, ...] = ()
    cpus: int | None = None
    gpus: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    restart_count: int = 0
    lost_runs: tuple[LostRun, ...] = ()
    energy_joules: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    missing_nodes: int | None = None
    unknown_energy: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    idle_watts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    limit_watts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    max_limit_watts: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    settings: Mapping[str, tuple[tuple[str, str, str | None], ...]] = field(default_factory=dict)

    @property
    def is_energy_complete(self) -> bool:
        """Whether the energies cover all nodes and all their processors, memory and GPUs.

        If not, the sum of the energies is only a lower bound of the job's energy. An unknown number of
        missing nodes counts as none.
        """
        return not self.missing_nodes and not any(self.unknown_energy.values())

    def node_joules(self, node: str) -> float | None:
        """Return the energy of a node: that of component `node`, or else the sum over all components.

        The result is None if the energy of the node is unknown or incomplete.
        """
        components = self.energy_joules.get(node)
        return None if self.unknown_energy.get(node) or not components else _sum(components)

    @property
    def known_joules(self) -> float | None:
        """Sum of the known energies of all nodes; None if no energy is known.

        The sum is a lower bound of the job's energy if `is_energy_complete` is false.
        """
        known = [_sum(components) for components in self.energy_joules.values() if components]
        return math.fsum(known) if known else None


def _sum(components: Mapping[str, float]) -> float:
    return components["node"] if "node" in components else math.fsum(components.values())


@dataclass(frozen=True, slots=True)
class JobObservation:
    """Observations of a job on all its nodes, with the allocation, the result and the energy of the job.

    Attributes:
        context: allocation, result and energy.
        nodes: observations by node; a node without observation is absent. The series of a node include its
            power trace, as signal `power_watts`.
    """

    context: ObservedAllocation
    nodes: tuple[NodeObservation, ...] = ()

    def series(self, name: str) -> Iterator[ObservedSeries]:
        """Yield the recorded series of a signal from all nodes of the job.

        A series without any known value is omitted. A node can have several series of the same signal.
        """
        for node in self.nodes:
            for series in node.series:
                if series.name == name and any(value == value for value in series.values):
                    yield series

    @property
    def ranks(self) -> tuple[RankSteps, ...]:
        """Reported steps of all processes (ranks) of the job on all nodes."""
        return tuple(rank for node in self.nodes for rank in node.ranks)
