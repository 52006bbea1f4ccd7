"""Baselines for power budgets: equal static caps, and an improved variant of power/cray_aries.

power/cray_aries is a plugin of Slurm. The module `cray_power_plugin.py` has the unchanged
plugin. All baselines write the limits of all devices at once and without error, so that only
the algorithms are compared. The baselines start every job for which nodes are free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slurm_energy_lab.model import NodeModel, NodeProfile
from slurm_energy_lab.realtime_model import RealtimeModel
from slurm_energy_lab.virtual_cluster.workload import ClusterJob, idle_watts, nameplate_watts


@dataclass(frozen=True, slots=True)
class NodeRange:
    """Range of the power of a whole node under limits of its devices.

    Attributes:
        min_watts: power if all devices are at their minimum limits.
        max_watts: power if all devices are at their maximum limits.
    """

    min_watts: float
    max_watts: float


def fixed_watts(profile: NodeProfile) -> float:
    """Return the power at full load of the parts of an emulated node that have no power limit.

    The losses of the power supply are left out.
    """
    memory, cpu = profile.memory, profile.cpu
    dram = memory.idle_watts + memory.joules_per_byte * cpu.package_bytes_per_s
    return profile.other.base_watts + cpu.packages * dram


def min_package_watts(profile: NodeProfile) -> float:
    """Return the power of a package at its minimum frequency under full load."""
    cpu = profile.cpu
    volts = (cpu.voltage_floor / cpu.voltage_max) ** 2
    share = profile.cpufreq.min_khz / profile.cpufreq.max_khz
    cores = cpu.cores_per_package * volts * (cpu.core_leakage_watts + 1.12 * cpu.core_dynamic_watts * share)
    uncore = cpu.uncore_joules_per_byte * cpu.package_bytes_per_s
    gpus = (profile.gpu.host_watts * profile.gpu.count / cpu.packages) if profile.gpu else 0.0
    return min(cpu.tdp_watts, cpu.idle_watts + cpu.awake_watts + cores + uncore + gpus)


def node_range(profile: NodeProfile) -> NodeRange:
    """Return the lowest and the highest power to which a node can be limited."""
    packages, gpu = profile.cpu.packages, profile.gpu
    low = packages * min_package_watts(profile)
    high = packages * profile.cpu.tdp_watts
    if gpu:
        low, high = low + gpu.count * gpu.min_limit_watts, high + gpu.count * gpu.default_limit_watts
    return NodeRange(_node_watts(profile, low), _node_watts(profile, high))


def _node_watts(profile: NodeProfile, device_watts: float) -> float:
    """Return the power of a node whose packages and GPUs draw the given power."""
    loss = 1.0 + profile.other.loss_share
    dram = fixed_watts(profile) - profile.other.base_watts
    return profile.other.base_watts + loss * (device_watts + dram)


def set_limits(state: NodeModel, package_watts: float, gpu_watts: float | None) -> None:
    """Set all power limits of a node."""
    profile = state.profile
    for package in range(profile.cpu.packages):
        for limit in profile.rapl.constraints:
            state.set_package_limit(package, limit.name, package_watts, limit.window_s, True)
    if profile.gpu and gpu_watts is not None:
        watts = min(profile.gpu.max_limit_watts, max(profile.gpu.min_limit_watts, gpu_watts))
        for index in range(profile.gpu.count):
            state.set_gpu(index, watts)


def set_cap(state: NodeModel, cap_watts: float) -> None:
    """Set the limits of all devices of a node so that the node cannot exceed its cap.

    No node has a common limit of its processors and GPUs. Each device gets the same share of its own range.
    """
    profile, item = state.profile, node_range(state.profile)
    share = (cap_watts - item.min_watts) / (item.max_watts - item.min_watts)
    share = min(1.0, max(0.0, share))
    low, high = min_package_watts(profile), profile.cpu.tdp_watts
    gpu = profile.gpu
    gpu_watts = gpu.min_limit_watts + share * (gpu.default_limit_watts - gpu.min_limit_watts) if gpu else None
    set_limits(state, low + share * (high - low), gpu_watts)


class EqualCaps:
    """Baseline of a benchmark: fixed power caps that keep the limit of a cluster.

    Each node gets the same fraction of its power range, or the same watts.

    Args:
        models: models of the nodes by name.
        limit_watts: limit of the cluster as a function of time.
        same_watts: whether each node gets the same watts. A node with a lower maximum power then cannot use
            all of its watts.
    """

    def __init__(
        self,
        models: Mapping[str, RealtimeModel],
        limit_watts: Callable[[float], float],
        *,
        same_watts: bool = False,
    ) -> None:
        self._models = models
        self._limit_watts = limit_watts
        self._same_watts = same_watts
        self._limit = float("nan")

    def admits(self, job: ClusterJob, nodes: Sequence[str]) -> bool:
        """Return True, because equal static caps never delay a job."""
        return True

    def job_starts(self, job: ClusterJob, nodes: Sequence[str]) -> None:
        """Do nothing."""

    def job_ends(self, job: ClusterJob, nodes: Sequence[str]) -> None:
        """Do nothing."""

    def tick(self, now_s: float) -> None:
        """Set new power caps when the limit rises, or one second before it falls."""
        limit = min(self._limit_watts(now_s), self._limit_watts(now_s + 1.0))
        if limit == self._limit:
            return
        self._limit = limit
        even = dict.fromkeys(self._models, limit / len(self._models))
        write_caps(self._models, even if self._same_watts else equal_caps(self._models, limit))


def write_caps(models: Mapping[str, RealtimeModel], caps: Mapping[str, float]) -> None:
    """Write the caps of nodes to their devices."""
    for name, cap in caps.items():
        with models[name].modify() as state:
            set_cap(state, cap)


def equal_caps(models: Mapping[str, RealtimeModel], limit_watts: float) -> dict[str, float]:
    """Return power caps for all nodes whose sum is the limit of the cluster.

    Each cap is the minimum of the node plus the same fraction of the range of its power.
    """
    ranges = {name: node_range(model.profile) for name, model in models.items()}
    low = sum(item.min_watts for item in ranges.values())
    high = sum(item.max_watts for item in ranges.values())
    share = min(1.0, max(0.0, (limit_watts - low) / (high - low)))
    return {name: item.min_watts + share * (item.max_watts - item.min_watts) for name, item in ranges.items()}


class CrayBalancer:
    """The algorithm of Slurm's plugin power/cray_aries with three improvements; see `CrayPlugin`.

    - When the limit of the cluster changes, the power is distributed at once. The plugin waits for
      its next interval.
    - A new job needs at least the lowest cap of its nodes. Power for these caps is kept free.
      Without the first two improvements, the power exceeds the limit.
    - Nodes whose caps can rise only a little are raised first. The power that they do not use then
      goes to other nodes. The plugin raises caps in the order of the nodes. Power that the last nodes cannot
      use then stays unused.

    Attributes:
        caps: cap of each node; empty before the first tick.
    """

    BALANCE_INTERVAL_S = 30.0
    DECREASE_RATE, INCREASE_RATE = 0.5, 0.2
    LOWER_THRESHOLD, UPPER_THRESHOLD = 0.90, 0.95
    RECENT_JOB_S = 300.0

    def __init__(self, models: Mapping[str, RealtimeModel], limit_watts: Callable[[float], float]) -> None:
        self._models = models
        self._limit_watts = limit_watts
        self._ranges = {name: node_range(model.profile) for name, model in models.items()}
        self.caps: dict[str, float] = {}
        self._new_job_s = dict.fromkeys(models, float("-inf"))
        self._counters: dict[str, tuple[float, float]] = {}
        self._due_s = float("-inf")
        self._limit = float("nan")

    def admits(self, job: ClusterJob, nodes: Sequence[str]) -> bool:
        """Return whether a job may start: always true, because this plugin does not delay jobs."""
        return True

    def job_starts(self, job: ClusterJob, nodes: Sequence[str]) -> None:
        """Record the start time of the job on its nodes.

        The balancer treats the nodes of recent jobs specially.
        """
        for node in nodes:
            with self._models[node].now() as state:
                self._new_job_s[node] = state.now_s

    def job_ends(self, job: ClusterJob, nodes: Sequence[str]) -> None:
        """Do nothing: the algorithm does not react to the end of a job."""

    def tick(self, now_s: float) -> None:
        """Redistribute the power caps among the nodes if this is due at time `now_s`.

        It is due at a fixed interval, and at once when the limit of the cluster changes.
        """
        limit = min(self._limit_watts(now_s), self._limit_watts(now_s + 1.0))
        if now_s >= self._due_s or limit != self._limit:
            self._limit = limit
            self._due_s = now_s + self.BALANCE_INTERVAL_S
            self.caps = self._balance(now_s, limit)
            write_caps(self._models, self.caps)

    def _current_watts(self) -> dict[str, float]:
        """Return the mean power of each node since the last call. The first call returns 0 W."""
        current = {}
        for name, model in self._models.items():
            with model.now() as state:
                now_s, joules = state.now_s, state.energy_joules("node")
            before_s, before = self._counters.get(name, (now_s, joules))
            self._counters[name] = now_s, joules
            current[name] = (joules - before) / (now_s - before_s) if now_s > before_s else 0.0
        return current

    def _balance(self, now_s: float, limit_watts: float) -> dict[str, float]:
        """Return new power caps of all nodes, computed by one step of the plugin's algorithm.

        The comments in the code number the parts of the algorithm as the plugin does.
        """
        current, old, caps = self._current_watts(), self.caps, {}
        raised = []
        for name, item in self._ranges.items():
            cap = old.get(name)
            recent = now_s - self._new_job_s[name] <= self.RECENT_JOB_S
            watts = current[name]
            if cap is None or recent or not watts or watts > self.UPPER_THRESHOLD * cap:  # (3)
                raised.append(name)
            elif watts < self.LOWER_THRESHOLD * cap:  # (1)
                span = item.max_watts - item.min_watts
                cut = min(self.DECREASE_RATE * span, (cap - watts) / 2.0)
                caps[name] = max(item.min_watts, cap - cut)
            else:  # (2)
                caps[name] = max(item.min_watts, cap)
        needed = sum(self._ranges[name].min_watts for name in raised)
        excess = sum(caps.values()) + needed - limit_watts
        if excess > 0 and caps:  # (4)
            cut = excess / len(caps)
            caps = {name: max(self._ranges[name].min_watts, cap - cut) for name, cap in caps.items()}
        self._raise(raised, caps, limit_watts, now_s)
        return caps

    def _raise(self, raised: list[str], caps: dict[str, float], limit_watts: float, now_s: float) -> None:
        """Divide the remaining power evenly among the nodes that need more (step 5 of the algorithm)."""
        left = limit_watts - sum(caps.values())
        # A node whose cap is bounded leaves its rest to the others: nodes with the least room come first.
        bounds = {name: self._bound(name, now_s) for name in raised}
        for position, name in enumerate(sorted(raised, key=lambda name: bounds[name])):
            share = left / (len(raised) - position)
            caps[name] = max(self._ranges[name].min_watts, min(bounds[name], share))
            left -= caps[name]

    def _bound(self, name: str, now_s: float) -> float:
        """Return the highest new power cap that a node which needs more power may get."""
        item, cap = self._ranges[name], self.caps.get(name)
        if cap is None or now_s - self._new_job_s[name] <= self.RECENT_JOB_S:
            return item.max_watts
        return min(item.max_watts, cap + self.INCREASE_RATE * (item.max_watts - item.min_watts))


def is_feasible(cpu: NodeProfile, gpu: NodeProfile, share: float) -> bool:
    """Return whether hardware is suitable for the comparison of methods that keep a power limit.

    The cluster of the comparison has equal numbers of CPU nodes and GPU nodes. The power limit is `share`
    times the sum of the nodes' nameplate (maximum) power. The hardware is suitable if the limit exceeds the
    lowest power to which the nodes can be limited, and clearly exceeds their idle power. Otherwise the
    baseline methods, which start every job, would exceed the limit.

    Args:
        cpu: profile of the CPU nodes.
        gpu: profile of the GPU nodes.
        share: power limit as a fraction of the nameplate power.
    """
    low = sum(node_range(profile).min_watts for profile in (cpu, gpu))
    limit = share * sum(nameplate_watts(profile) for profile in (cpu, gpu))
    return low <= limit and sum(idle_watts(profile) for profile in (cpu, gpu)) <= 0.8 * limit
