"""One cycle of power saving: reads nodes and jobs from Slurm, decides, and powers nodes down or up."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from slurm_energy.config.power_saving_section import PowerSavingConfig
from slurm_energy.controller.budgets.away_power import AwayPower
from slurm_energy.controller.local_time import utc_offsets
from slurm_energy.controller.power_saving.node_boots import NodeBoots
from slurm_energy.power_saving.boot_headroom import BootHeadroom
from slurm_energy.power_saving.cluster_plan import (
    ClusterPlan,
    FutureJob,
    NodeChange,
    PlannedNode,
    PoolModel,
    plan_cluster,
)
from slurm_energy.power_saving.demand_forecast import DemandHistory, horizons
from slurm_energy.power_saving.node_energy import NodeEnergy
from slurm_energy.power_saving.power_down_rule import NodeActivity, PowerSavingRules, forecast_points
from slurm_energy.slurm.command import Runner
from slurm_energy.slurm.hostlist import expand_hostlist, fold_hostlist
from slurm_energy.slurm.node_power_states import (
    NodePowerStatus,
    power_down,
    power_up,
    read_power_states,
)
from slurm_energy.slurm.power_saving_settings import PowerSavingSettings, read_power_saving_settings
from slurm_energy.slurm.queue.node_demand import (
    NodeDemand,
    RequestedNodes,
    read_node_demand,
    read_reserved_nodes,
)

SETTINGS_AGE_S: Final = 300.0
NodeArrival = tuple[str, float, float]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class CycleReport:
    """Report on one cycle of power saving: what was decided and why.

    Attributes:
        plan: the nodes to power down or up.
        problems: reasons why Slurm would not power nodes down or up.
        nodes: number of nodes by their activity, such as busy, idle or off.
        warnings: facts about the configuration that the site may not intend.
        energy: power and durations of boots and shutdowns on which the decision is based, by kind of node.
    """

    plan: ClusterPlan = field(default_factory=ClusterPlan)
    problems: list[str] = field(default_factory=list)
    nodes: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    energy: dict[str, NodeEnergy] = field(default_factory=dict)


class PowerSavingEngine:
    """Power saving on the cluster. All calls are made from one thread at a time.

    Args:
        run: runs Slurm's commands.
        clock: returns Unix seconds.
        boots: power states of the nodes and boots in progress. The server of the boot socket uses the same
            object.
        away: learned power of nodes that are off, booting or shutting down.
        run_times: returns the expected run times of jobs in seconds, by job id.
    """

    def __init__(
        self,
        run: Runner,
        clock: Callable[[], float] = time.time,
        boots: NodeBoots | None = None,
        away: AwayPower | None = None,
        run_times: Callable[[], Mapping[int, float]] = dict,
    ) -> None:
        self._run, self._clock, self._run_times = run, clock, run_times
        self.boots = boots or NodeBoots()
        self._away = away or AwayPower(self.boots)
        self._settings: tuple[float, PowerSavingSettings, list[RequestedNodes]] | None = None
        self._histories: dict[str, tuple[tuple[float, ...], DemandHistory]] = {}
        self._idle_since: dict[str, float] = {}
        self._arrivals: Sequence[NodeArrival] = ()
        self._known_until = 0.0
        self._since = 0.0

    @property
    def slurm_uid(self) -> int | None:
        """Uid of SlurmUser; None means not read yet."""
        return None if self._settings is None else self._settings[1].slurm_uid

    @property
    def boot_wait_s(self) -> float | None:
        """Maximum seconds for which PrologSlurmctld may wait for a boot; None if not read yet."""
        return None if self._settings is None else self._settings[1].boot_wait_s

    def learn(self, arrivals: Sequence[NodeArrival], since: float, until: float) -> None:
        """Store past jobs, from which the future demand for nodes is estimated.

        Args:
            arrivals: node, start and end of each job on each node, in order of the start.
            since: Unix time from which on `arrivals` is complete.
            until: Unix time until which `arrivals` is complete.
        """
        self._arrivals, self._known_until = arrivals, until
        self._since = max(since, arrivals[0][1]) if arrivals else until
        self._histories.clear()

    def cycle(
        self,
        config: PowerSavingConfig,
        idle_watts: Mapping[str, float],
        headrooms: Sequence[BootHeadroom] = (),
    ) -> CycleReport:
        """Decide once which nodes to power down or up; in mode `on`, also carry out the decision.

        Args:
            config: the configuration.
            idle_watts: lowest measured power by node.
            headrooms: power that each enforced budget leaves for booting nodes.

        Raises:
            UnavailableError: slurmctld does not answer or refuses a change.
        """
        now = self._clock()
        settings, reserved = self._current_settings(now)
        nodes = read_power_states(self._run)
        self._observe(nodes, now)
        demand = read_node_demand(self._run, self._run_times(), now)
        members = [self._node(one, config, settings, demand, now) for one in nodes]
        models = self._models(config, members, idle_watts)
        plan = plan_cluster(
            *(members, _future_jobs(demand, reserved, now), models, _reserves(config, members)),
            *(rules_of(config), now, headrooms),
        )
        report = CycleReport(plan, settings.problems(), _counts(members), _warnings(settings, config))
        report.energy = {pool: model.energy for pool, model in models.items()}
        if config.mode == "on" and not report.problems:
            self._execute(plan, now)
        return report

    def _current_settings(self, now: float) -> tuple[PowerSavingSettings, list[RequestedNodes]]:
        if self._settings is None or not 0 <= now - self._settings[0] < SETTINGS_AGE_S:
            settings = read_power_saving_settings(self._run)
            self._settings = (now, settings, read_reserved_nodes(self._run))
        return self._settings[1:]

    def _observe(self, nodes: Sequence[NodePowerStatus], now: float) -> None:
        """Record the time since which each idle node is idle, and the progress of boots."""
        idle = {one.name for one in nodes if _activity(one) is NodeActivity.IDLE}
        self._idle_since = {name: self._idle_since.get(name, now) for name in idle}
        self.boots.observe(nodes, now)

    def _node(
        self,
        one: NodePowerStatus,
        config: PowerSavingConfig,
        settings: PowerSavingSettings,
        demand: NodeDemand,
        now: float,
    ) -> PlannedNode:
        excluded = settings.excluded_partitions | frozenset(config.exclude_partitions)
        is_protected = bool(
            one.hindrance
            or one.is_down
            or one.name in settings.excluded_nodes
            or one.name in _names(config.exclude_nodes)
            or one.partitions & excluded
            or one.words & settings.excluded_states
        )
        since = self._idle_since.get(one.name, now)
        if one.last_busy_unix_s is not None:
            since = max(one.last_busy_unix_s, one.boot_unix_s or 0.0)
        busy_until = demand.busy_until_unix_s.get(one.name, now)
        activity = _activity(one)
        if activity is NodeActivity.IDLE and one.name in demand.busy_until_unix_s:
            activity = NodeActivity.BUSY  # a job started between the two commands
        return PlannedNode(
            *(one.name, one.kind, one.partitions, activity, is_protected),
            idle_s=max(0.0, now - since),
            on_s=math.inf if one.boot_unix_s is None else max(0.0, now - one.boot_unix_s),
            busy_for_s=busy_until - now,
        )

    def _models(
        self, config: PowerSavingConfig, members: Sequence[PlannedNode], idle_watts: Mapping[str, float]
    ) -> dict[str, PoolModel]:
        pools: dict[str, list[str]] = {}
        for one in members:
            pools.setdefault(one.pool, []).append(one.name)
        configured = {name: watts for text, watts in config.idle_watts.items() for name in _names(text)}
        models = {}
        for pool, names in pools.items():
            watts = [configured.get(name, idle_watts.get(name)) for name in names]
            known = [value for value in watts if value is not None]
            if known:  # without the power of an idle node there is no expected saving
                energy = self._energy(config, pool, statistics.median(known))
                models[pool] = PoolModel(energy, self._history(config, pool, frozenset(names), energy))
        return models

    def _energy(self, config: PowerSavingConfig, pool: str, idle_watts: float) -> NodeEnergy:
        declared = NodeEnergy(
            *(idle_watts, min(config.off_watts, idle_watts), config.boot_s, config.boot_watts),
            *(config.shutdown_s, config.shutdown_watts),
        )
        return self._away.energy(pool, declared)

    def _history(
        self, config: PowerSavingConfig, pool: str, names: frozenset[str], energy: NodeEnergy
    ) -> DemandHistory:
        # Only a boot time that has changed noticeably is worth sampling the history again.
        points = tuple(10.0 * round(point / 10.0) for point in forecast_points(energy, rules_of(config)))
        stored = self._histories.get(pool)
        if stored is None or stored[0] != points:
            history = DemandHistory(
                horizons(points),
                max_days=config.history_days,
                utc_offset_s=utc_offsets,
            )
            own = [(start, end - start) for node, start, end in self._arrivals if node in names]
            table = np.array(own, np.float64).reshape(-1, 2)
            ones = np.ones(len(table))
            history.extend(self._since, self._known_until, table[:, 0], table[:, 1], ones)
            stored = self._histories[pool] = (points, history)
        return stored[1]

    def _execute(self, plan: ClusterPlan, now: float) -> None:
        """Power nodes down and up. Each change is logged with its reason, for audit."""
        if plan.down:
            names = [one.name for one in plan.down]
            self.boots.power_down(names, now)
            power_down(names, self._run)
            saving_joules = sum(one.saving_joules for one in plan.down)
            log.info("power saving: down %s, expected saving %.3g kWh", fold(names), saving_joules / 3.6e6)
        if plan.up:
            names = [one.name for one in plan.up]
            self.boots.request(names, now)
            power_up(names, self._run)
            probability = max(one.probability for one in plan.up)
            log.info("power saving: up %s, needed soon with probability %.2f", fold(names), probability)


def fold(changes: Sequence[str] | Sequence[NodeChange]) -> str:
    """Return the names of nodes as one host list."""
    return fold_hostlist(one if isinstance(one, str) else one.name for one in changes)


def rules_of(config: PowerSavingConfig) -> PowerSavingRules:
    """Return the parameters of the rules that power idle nodes down and up, from a configuration.

    The `wake_probability` of the result is never lower than the configured `risk`.
    """
    return PowerSavingRules(
        risk=config.risk,
        wake_probability=max(config.risk, config.wake_probability),
        min_saving=config.min_saving,
        min_idle_s=config.min_idle_s,
        min_on_s=config.min_on_s,
        cycle_s=config.cycle_s,
        max_down=config.max_down,
        max_up=config.max_up,
    )


def _activity(one: NodePowerStatus) -> NodeActivity:
    if one.is_busy:
        return NodeActivity.BUSY
    if one.is_down:
        return NodeActivity.UNAVAILABLE
    for state, activity in (
        (one.is_off, NodeActivity.OFF),
        (one.is_stopping, NodeActivity.STOPPING),
        (one.is_booting, NodeActivity.BOOTING),
    ):
        if state:
            return activity
    return NodeActivity.IDLE if "IDLE" in one.words else NodeActivity.UNAVAILABLE


def _future_jobs(demand: NodeDemand, reserved: Sequence[RequestedNodes], now: float) -> list[FutureJob]:
    jobs = [
        FutureJob(one.partitions, one.nodes, one.time_s, max(0.0, one.from_unix_s - now))
        for one in demand.pending
        for _ in range(one.tasks)
    ]
    # The nodes of a reservation that has begun are in a state that protects them.
    ahead = [one for one in reserved if one.from_unix_s > now]
    return jobs + [FutureJob(one.partitions, one.nodes, one.time_s, one.from_unix_s - now) for one in ahead]


def _reserves(config: PowerSavingConfig, members: Sequence[PlannedNode]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for one in members:
        for partition in one.partitions:
            sizes[partition] = sizes.get(partition, 0) + 1
    share = config.reserve_percent / 100
    return {
        partition: math.ceil(config.reserve_nodes.get(partition, share * size) - 1e-9)
        for partition, size in sizes.items()
    }


def _counts(members: Sequence[PlannedNode]) -> dict[str, int]:
    counts = {activity.name.lower(): 0 for activity in NodeActivity}
    for one in members:
        counts[one.activity.name.lower()] += 1
    counts["protected"] = sum(one.is_protected for one in members)
    return counts


def _warnings(settings: PowerSavingSettings, config: PowerSavingConfig) -> list[str]:
    lines = settings.advice()
    if settings.suspend_time_s is not None and settings.suspend_time_s < 86400:
        lines.append(
            f"SuspendTime={settings.suspend_time_s:.0f}: slurmctld itself powers nodes down, too, without "
            "forecast and reserve: set SuspendTime=31536000 to leave this to senergyctld"
        )
    if settings.resume_timeout_s is not None and settings.resume_timeout_s < config.boot_s:
        lines.append(f"ResumeTimeout={settings.resume_timeout_s:.0f} is below power_saving.boot_s")
    return lines


def _names(text: str) -> frozenset[str]:
    return frozenset(expand_hostlist(text)) if text.strip() else frozenset()
