"""Slurm's plugin power/cray_aries (15.08 to 23.11), rewritten as a baseline for power budgets.

Source: src/plugins/power/cray_aries/power_cray_aries.c, tag slurm-23-11-10-1, with the default
PowerParameters. `rebalance` reimplements the plugin's function `_rebalance_node_power` in the same order and
with the same unsigned 32-bit integers. `CrayPlugin` reimplements `_power_agent`. The baseline assumes that
nodes are never down and that no job requests equal caps for its nodes.

The plugin has these properties, which the baseline keeps:

- It acts only once per `balance_interval`. A new limit and a new job wait for the next round.
- The nodes of a job that started in the last 300 s get an even share of the remaining power,
  whatever power they draw.
- It raises the caps of the nodes in the order of the nodes. Power that the last nodes cannot
  use stays unused.
- It keeps no power free for the lowest caps of the nodes of recent jobs. Therefore the sum of
  the caps can exceed the limit.
- Its subtraction `cap_watts - alloc_power` may wrap around. This, too, can let the sum of the
  caps exceed the limit.

The baseline has two advantages over the plugin on a Cray. Caps are written without delay and without error.
All nodes report their energy counters in the same instant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from budget_baselines import node_range, write_caps

from slurm_energy_lab.realtime_model import RealtimeModel
from slurm_energy_lab.virtual_cluster.workload import ClusterJob, idle_watts

BALANCE_INTERVAL_S = 30
DECREASE_PERCENT, INCREASE_PERCENT = 50, 20
LOWER_PERCENT, UPPER_PERCENT = 90, 95
RECENT_JOB_S = 300
_FIRST_ROUND_S = 15.0
"""Time of the first round. The steps of a limit then fall in the middle of two rounds."""
_IDLE_ROUNDS = 20
_UINT32 = 1 << 32


@dataclass(slots=True)
class PluginNode:
    """A node as Slurm's plugin power/cray_aries stores it (`power_mgmt_data_t`).

    The plugin changes the power caps of all nodes in regular rounds.

    Attributes:
        min_watts, max_watts: range of the cap of the node.
        cap_watts: cap; 0: not set yet.
        current_watts: mean power since the last round; 0: unknown.
        new_job_s: time of the last start of a job.
        new_cap_watts: cap after the round.
    """

    min_watts: int
    max_watts: int
    cap_watts: int = 0
    current_watts: int = 0
    new_job_s: float = float("-inf")
    new_cap_watts: int = 0

    @property
    def range_watts(self) -> int:
        """Difference of the highest and the lowest cap."""
        return self.max_watts - self.min_watts


def rebalance(nodes: Sequence[PluginNode], cap_watts: int, now_s: float) -> None:
    """Compute the new power caps of all nodes as Slurm's plugin power/cray_aries does.

    The caps are stored in the attribute `new_cap_watts` of the nodes.

    Args:
        nodes: the nodes in Slurm's order.
        cap_watts: limit of the cluster.
        now_s: time now.
    """
    recent_s = now_s - RECENT_JOB_S
    needed_watts = sum(_first_cap(node, recent_s) for node in nodes)
    kept = [node for node in nodes if node.new_cap_watts]
    alloc_watts = sum(node.new_cap_watts for node in kept)
    avail_watts = max(0, cap_watts - alloc_watts)
    if alloc_watts > cap_watts or needed_watts > avail_watts:
        excess_watts = max(alloc_watts - cap_watts, needed_watts - avail_watts)
        cut_watts = excess_watts // (len(kept) or len(nodes))
        for node in kept:
            node.new_cap_watts -= min(node.new_cap_watts - node.min_watts, cut_watts)
        avail_watts = (cap_watts - sum(node.new_cap_watts for node in kept)) % _UINT32
    _distribute([node for node in nodes if not node.new_cap_watts], avail_watts, recent_s)


def _first_cap(node: PluginNode, recent_s: float) -> int:
    """Set the new power cap of a node in the first step of Cray's algorithm.

    There are three cases:

    - The node draws little power: it gets a lower cap.
    - The node draws somewhat less than its cap: it keeps the cap.
    - The node needs more power, or a new job has started on it: the new cap is set to 0.

    Return the power to reserve for the node: the node's minimum power if the node needs more power,
    otherwise 0.
    """
    node.new_cap_watts = 0
    if node.new_job_s >= recent_s or not node.cap_watts or not node.current_watts:
        return 0
    if node.current_watts < node.cap_watts * LOWER_PERCENT // 100:
        half_watts = (node.cap_watts - node.current_watts) // 2
        new_watts = node.cap_watts - min(node.range_watts * DECREASE_PERCENT // 100, half_watts)
        node.new_cap_watts = max(new_watts, node.min_watts)
        return 0
    if node.current_watts <= node.cap_watts * UPPER_PERCENT // 100:
        node.new_cap_watts = max(node.cap_watts, node.min_watts)
        return 0
    return node.min_watts


def _distribute(raised: Sequence[PluginNode], avail_watts: int, recent_s: float) -> None:
    """Divide the remaining power among the nodes whose caps must rise, in the order of the nodes."""
    left = len(raised)
    even_watts = avail_watts // left if left else 0
    for node in raised:
        new_watts = even_watts
        if node.new_job_s < recent_s:
            new_watts = min(node.cap_watts + node.range_watts * INCREASE_PERCENT // 100, even_watts)
        node.new_cap_watts = min(max(new_watts, node.min_watts), node.max_watts)
        avail_watts = max(0, avail_watts - node.new_cap_watts)
        left -= 1
        if left and node.new_cap_watts != even_watts:
            even_watts = avail_watts // left


class CrayPlugin:
    """Model of the Cray power management plugin, which caps the power of emulated nodes.

    When the limit of the cluster changes, an operator writes the new limit into slurm.conf. The plugin sets
    the caps of the nodes in rounds. Before the first round, the plugin has run on the idle cluster until its
    caps no longer changed.

    Args:
        models: models of the nodes by name.
        limit_watts: limit of the cluster as a function of time.

    Attributes:
        nodes: state of the nodes by name.
    """

    def __init__(self, models: Mapping[str, RealtimeModel], limit_watts: Callable[[float], float]) -> None:
        self._models = models
        self._limit_watts = limit_watts
        self._counters: dict[str, float] = {}
        self.nodes: dict[str, PluginNode] = {}
        self._round_s = self._begin()
        self._due_s = self._round_s + _FIRST_ROUND_S

    def admits(self, job: ClusterJob, nodes: Sequence[str]) -> bool:
        """Return true for every job, because the plugin does not restrict the start of jobs."""
        return True

    def job_starts(self, job: ClusterJob, nodes: Sequence[str]) -> None:
        """Note that a new job started on its nodes, and when."""
        for name in nodes:
            with self._models[name].now() as state:
                self.nodes[name].new_job_s = state.now_s

    def job_ends(self, job: ClusterJob, nodes: Sequence[str]) -> None:
        """Do nothing, because this power plugin does not react to the end of a job."""

    def tick(self, now_s: float) -> None:
        """Run a round of the balancing of power caps if one is due."""
        if now_s < self._due_s - 1e-6:
            return
        for name, node in self.nodes.items():
            joules = self._joules(name)
            node.current_watts = int((joules - self._counters[name]) / (now_s - self._round_s))
            self._counters[name] = joules
        self._round(now_s)
        self._round_s, self._due_s = now_s, now_s + BALANCE_INTERVAL_S

    def _begin(self) -> float:
        """Set the caps of an idle cluster, read the energy counters and return the time."""
        now_s = 0.0
        for name, model in self._models.items():
            item = node_range(model.profile)
            self.nodes[name] = PluginNode(int(item.min_watts), int(item.max_watts))
            self._counters[name] = self._joules(name)
            with model.now() as state:
                now_s = state.now_s
        self._round(now_s)
        for node, model in zip(self.nodes.values(), self._models.values(), strict=True):
            node.current_watts = int(idle_watts(model.profile))
        for _ in range(_IDLE_ROUNDS):
            self._round(now_s)
        return now_s

    def _round(self, now_s: float) -> None:
        rebalance(list(self.nodes.values()), int(self._limit_watts(now_s)), now_s)
        for node in self.nodes.values():
            node.cap_watts = node.new_cap_watts
        write_caps(self._models, {name: float(node.cap_watts) for name, node in self.nodes.items()})

    def _joules(self, name: str) -> float:
        with self._models[name].now() as state:
            return float(state.energy_joules("node"))
