"""Upper bounds of what any distribution of a power budget can gain.

The bound `UnlimitedPower` has no limit at all. The bound `ClairvoyantCaps` has perfect knowledge: the true
speed and power of every program at every limit, and the current phase of programs with long phases. Once per
second it maximises the sum of the speeds of all nodes with jobs. It writes limits at once and without error,
and needs neither margins nor confirmations. Jobs start as under the baselines. Therefore, only the
distribution among running jobs is bounded, not the choice of the jobs to start.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from budget_baselines import set_limits

from slurm_energy.policies.operating_point import UNTUNED, OperatingPoint
from slurm_energy_lab.model import NodeProfile
from slurm_energy_lab.model.kernels import KernelPhase
from slurm_energy_lab.model.programs import workload_spec
from slurm_energy_lab.model.steady_state import SteadyState
from slurm_energy_lab.realtime_model import RealtimeModel
from slurm_energy_lab.virtual_cluster.workload import ClusterJob, idle_watts

INTERVAL_S = 1.0
USED_SHARE = 0.985
"""Share of the limit that is distributed: the power of the phases of a step varies around its mean."""
_PACKAGE_SHARES = np.linspace(0.3, 1.0, 8)
_GPU_LIMITS = 19


class UnlimitedPower:
    """Power management without any limit.

    Its throughput is an upper bound for all methods that keep a power budget.
    """

    def admits(self, job: ClusterJob, nodes: Sequence[str]) -> bool:
        """Return True: without a power limit, every job may start."""
        return True

    def job_starts(self, job: ClusterJob, nodes: Sequence[str]) -> None:
        """Do nothing at the start of a job, because there is no power limit."""

    def job_ends(self, job: ClusterJob, nodes: Sequence[str]) -> None:
        """Do nothing when a job ends, because the power is unlimited."""

    def tick(self, now_s: float) -> None:
        """Do nothing, because unlimited power needs no control."""


@dataclass(frozen=True, slots=True)
class NodeSetting:
    """Power limits of the devices of a node, and the speed and power of a program under them.

    Attributes:
        speed: speed divided by the speed without limits.
        watts: mean power of the node.
        package_watts, gpu_watts: limits per device; `gpu_watts` is None without GPUs.
    """

    speed: float
    watts: float
    package_watts: float
    gpu_watts: float | None

    def towards(self, other: NodeSetting, part: float) -> NodeSetting:
        """Return a setting between this setting and another one, by linear interpolation.

        `part` is the position: 0 means this setting, 1 the other one.
        """
        gpu = None
        if self.gpu_watts is not None and other.gpu_watts is not None:
            gpu = self.gpu_watts + part * (other.gpu_watts - self.gpu_watts)
        package = self.package_watts + part * (other.package_watts - self.package_watts)
        watts = self.watts + part * (other.watts - self.watts)
        return NodeSetting(self.speed + part * (other.speed - self.speed), watts, package, gpu)


class ClairvoyantCaps:
    """Ideal reference for methods that keep a power budget: no method can do better.

    The reference has perfect knowledge of the nodes and jobs. It sets the power limits with which the sum
    of the jobs' speeds is greatest.

    Args:
        models: models of the nodes by name.
        limit_watts: power limit of the cluster as a function of time.
    """

    def __init__(self, models: Mapping[str, RealtimeModel], limit_watts: Callable[[float], float]) -> None:
        self._models = models
        self._limit_watts = limit_watts
        self._limit = float("nan")
        self._due_s = float("-inf")
        self._jobs: dict[int, tuple[ClusterJob, tuple[str, ...]]] = {}
        self._truth: dict[tuple[str, str], SteadyState] = {}
        self._settings: dict[tuple[str, str, tuple[KernelPhase, ...]], list[NodeSetting]] = {}

    def admits(self, job: ClusterJob, nodes: Sequence[str]) -> bool:
        """Return True: this method of comparison lets every job start."""
        return True

    def job_starts(self, job: ClusterJob, nodes: Sequence[str]) -> None:
        """Note the start of a job on its nodes. The power is distributed again at the next tick."""
        self._jobs[job.job_id] = job, tuple(nodes)
        self._due_s = float("-inf")

    def job_ends(self, job: ClusterJob, nodes: Sequence[str]) -> None:
        """Record the end of a job. The power is distributed again in the next time step."""
        del self._jobs[job.job_id]
        self._due_s = float("-inf")

    def tick(self, now_s: float) -> None:
        """Set power limits on the nodes so that the cluster keeps its limit, if this is due.

        The power is distributed once per interval, and additionally one second before the limit of the
        cluster is lowered.
        """
        limit = min(self._limit_watts(now_s), self._limit_watts(now_s + 1.0))
        if now_s < self._due_s and limit == self._limit:
            return
        self._due_s, self._limit = now_s + INTERVAL_S, limit
        by_node = {
            name: self._node_settings(job, name) for job, nodes in self._jobs.values() for name in nodes
        }
        idle = sum(idle_watts(model.profile) for name, model in self._models.items() if name not in by_node)
        for name, setting in best_settings(by_node, USED_SHARE * limit - idle).items():
            with self._models[name].modify() as state:
                set_limits(state, setting.package_watts, setting.gpu_watts)

    def _node_settings(self, job: ClusterJob, name: str) -> list[NodeSetting]:
        profile, phases = self._models[name].profile, self._phases(job, name)
        key = profile.name, job.partition, phases
        if key not in self._settings:
            truth = self._truth.setdefault(key[:2], SteadyState(profile, job.partition))
            self._settings[key] = efficient_settings(truth, phases)
        return self._settings[key]

    def _phases(self, job: ClusterJob, name: str) -> tuple[KernelPhase, ...]:
        """Return the phases of the job's program that determine its power now.

        The result is the current phase if the program has long phases, and all phases if it has short ones.
        """
        spec = workload_spec(job.program)
        if spec.looped or len(set(spec.phases)) == 1:
            return spec.phases
        with self._models[name].now() as state:
            shares = [state.progress_share(run_id) for run_id in state.running()]
        done = shares[0] * sum(phase.units for phase in spec.phases) if shares else 0.0
        for phase in spec.phases:
            done -= phase.units
            if done < 0:
                return (phase,)
        return spec.phases[-1:]


def efficient_settings(truth: SteadyState, phases: Sequence[KernelPhase]) -> list[NodeSetting]:
    """Return the power settings of a node that are worth using, in ascending order of their power.

    In a plot of speed over power, these settings lie on the concave envelope of all settings. For the power
    that such a setting needs, no mixture of other settings is faster on average.
    """
    counts = Counter(phases)
    full_s = sum(count * truth.phase(UNTUNED, phase).seconds for phase, count in counts.items())
    settings = []
    for package_watts, gpu_watts in _limits(truth.profile):
        point = OperatingPoint(package_limit_watts=package_watts, gpu_limit_watts=gpu_watts)
        figures = [(count, truth.phase(point, phase)) for phase, count in counts.items()]
        seconds = sum(count * one.seconds for count, one in figures)
        joules = sum(count * one.seconds * one.watts for count, one in figures)
        settings.append(NodeSetting(full_s / seconds, joules / seconds, package_watts, gpu_watts))
    envelope: list[NodeSetting] = []
    for item in sorted(settings, key=lambda item: (item.watts, -item.speed)):
        if envelope and item.speed <= envelope[-1].speed + 1e-9:
            continue
        while len(envelope) > 1 and _slope(envelope[-2], envelope[-1]) <= _slope(envelope[-2], item):
            envelope.pop()
        envelope.append(item)
    return envelope


def _limits(profile: NodeProfile) -> list[tuple[float, float | None]]:
    packages = [float(share * profile.cpu.tdp_watts) for share in _PACKAGE_SHARES]
    gpu = profile.gpu
    if gpu is None:
        return [(watts, None) for watts in packages]
    limits = np.linspace(gpu.min_limit_watts, gpu.default_limit_watts, _GPU_LIMITS)
    return [(watts, float(limit)) for watts in packages for limit in limits]


def _slope(low: NodeSetting, high: NodeSetting) -> float:
    return (high.speed - low.speed) / max(high.watts - low.watts, 1e-9)


def best_settings(by_node: Mapping[str, Sequence[NodeSetting]], watts: float) -> dict[str, NodeSetting]:
    """Return the power setting of each node that maximises the sum of speeds within a power limit.

    Each node gets at least its setting with the lowest power, even if the sum of the powers is then above
    the limit.

    Args:
        by_node: possible settings of each node, by ascending power. They lie on the concave envelope of
            speed over power.
        watts: power for all nodes.
    """
    chosen = {name: settings[0] for name, settings in by_node.items()}
    left = watts - sum(setting.watts for setting in chosen.values())
    steps = [
        (_slope(low, high), name, low, high)
        for name, settings in by_node.items()
        for low, high in itertools.pairwise(settings)
    ]
    for _, name, low, high in sorted(steps, key=lambda step: -step[0]):
        if left <= 0:
            break
        part = min(1.0, left / (high.watts - low.watts))
        chosen[name] = low.towards(high, part)
        left -= part * (high.watts - low.watts)
    return chosen
