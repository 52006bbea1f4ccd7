"""Data about jobs, nodes and budgets from which the budget engine decides.

The engine sets power limits such that the nodes keep the configured power budgets. A further input, the
polls of the nodes, is defined elsewhere.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from slurm_energy.accounting.records.plausibility import MAX_WATTS
from slurm_energy.tuning.response_curve import ResponseCurve


class ScopeKind(StrEnum):
    """Kind of objects that a budget limits: the whole cluster, nodes, or jobs."""

    CLUSTER = "cluster"
    PARTITION = "partition"
    NODES = "nodes"
    ACCOUNT = "account"
    USER = "user"
    QOS = "qos"


@dataclass(frozen=True, slots=True)
class BudgetScope:
    """The nodes or jobs whose power a budget limits.

    Attributes:
        kind: whether the budget limits the cluster, nodes or jobs, and how the nodes or jobs are selected.
        names: names of the nodes, partitions, users or QOS that the budget limits. For an account: the name
            of the account and the names of all accounts below it. For the cluster: empty.
    """

    kind: ScopeKind
    names: frozenset[str] = frozenset()

    @property
    def covers_nodes(self) -> bool:
        """Whether the budget counts the power of whole nodes.

        If not, the budget counts only the devices of jobs.
        """
        return self.kind in (ScopeKind.CLUSTER, ScopeKind.PARTITION, ScopeKind.NODES)


@dataclass(frozen=True, slots=True)
class BudgetInForce:
    """A budget with its limit at the time of a decision.

    Attributes:
        name: name in the configuration.
        scope: the nodes or jobs under the budget.
        limit_watts: limit now. If the limit will fall so soon that nodes must lower their power now, this
            value is the lower limit after the fall. Infinity means no limit.
        lowest_watts: lowest limit of the next hours. The safe limits, which nodes use without contact to the
            controller, must keep this limit.
        floor_percent: lowest power limit that running jobs may get, as a position in a device's range of
            power limits: 0 is the device's minimum limit, 100 its maximum.
        constant_watts: power under the budget that no node reports, such as the power of switches.
        falls_in_s: seconds until the limit falls below `limit_watts`; infinity if no fall is known.
    """

    name: str
    scope: BudgetScope
    limit_watts: float
    lowest_watts: float
    floor_percent: float = 0.0
    constant_watts: float = 0.0
    falls_in_s: float = math.inf


@dataclass(frozen=True, slots=True)
class BudgetedJob:
    """A running job in Slurm, as input for decisions about power budgets.

    Attributes:
        job_id, restart_count: id of the job and number of its requeues, which together identify the run.
        user, account, partition, qos: names of the job's user, account, partition and QOS; empty if
            unknown.
        nodes: nodes of the job.
        deadline_s: slack of the job, which is the seconds until its deadline minus its remaining run time
            without a power limit. None means that the job has no deadline.
        draw_watts: predicted power of one device of the job, by kind of device. The value is an upper
            quantile.
        curves: response curve of the job, by kind of device. Of several curves for the same kind of
            device, the one from the best source is used.
    """

    job_id: int
    restart_count: int = 0
    user: str = ""
    account: str = ""
    partition: str = ""
    qos: str = ""
    nodes: frozenset[str] = frozenset()
    deadline_s: float | None = None
    draw_watts: Mapping[str, float] = field(default_factory=dict)
    curves: Mapping[str, ResponseCurve] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BudgetedNode:
    """A node in Slurm's configuration.

    Attributes:
        partitions: partitions to which the node belongs.
        nameplate_watts: maximum power of the node. None means that the sum of the maximum power of its
            devices and of `reserve_watts` is used. As long as the node has not reported its devices, the
            largest sum among the nodes that have reported is used.
        reserve_watts: power of the parts without a limit (memory, board, fans). None means that the
            controller learns this power from the node's reports.
        is_off: whether Slurm has powered the node down.
        off_watts: power of the node while it is off.
        boot_watts: power of the node while it boots; None means that the node does not boot.
    """

    partitions: frozenset[str] = frozenset()
    nameplate_watts: float | None = None
    reserve_watts: float | None = None
    is_off: bool = False
    off_watts: float = 0.0
    boot_watts: float | None = None


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of the budget engine, see section `budget` of the configuration.

    Attributes:
        enforces: whether nodes receive power limits. If not, decisions are only computed and shown.
        distribution: name of the distribution policy.
        period_s: maximum time for which the power may stay above a limit after a sudden change of the load or
            of the limit.
        poll_s: seconds between two polls of a node in a small cluster.
        lease_s: time after which a node without a decision sets its safe limits.
        margin_percent: percentage of each limit that is left unused.
        counts_idle: whether devices without jobs count at their idle power, which is safe because the
            controller admits each start of a job. Otherwise these devices count at their minimum limit.
        max_watts: maximum plausible power by component, see `controller.max_watts`.
    """

    enforces: bool = True
    distribution: str = "least-edp"
    period_s: float = 5.0
    poll_s: float = 1.0
    lease_s: float = 30.0
    margin_percent: float = 2.0
    counts_idle: bool = True
    max_watts: Mapping[str, float] = field(default_factory=lambda: MAX_WATTS)


@dataclass(frozen=True, slots=True)
class BudgetStatus:
    """State of one budget after a decision. Powers are watts.

    A floor is the lowest power to which a budget may reduce a device of a running job. The committed power
    is the highest power that is possible at the limits in force.

    Attributes:
        name: name in the configuration.
        limit_watts: limit of the budget before the margin is subtracted; infinity means no limit.
        measured_watts: measured power; nodes that do not report count at their committed power. None means
            that no node has reported.
        committed_watts: power that cannot be exceeded at the limits in force, including the fixed power.
        fixed_watts: power of all parts without a power limit.
        capped_watts: power by which the limits reduce the power of devices.
        headroom_watts: power above idle that new jobs may add now. For this, running jobs may be lowered as
            far as their floors and slowdown limits allow. The power already promised to jobs is included. A
            negative value means that the budget is above its limit.
        unlimited_idle_watts: part of `headroom_watts` that idle devices without a limit may draw. It is
            free for jobs, but not for booting nodes, because a job may start on the devices at any time.
        retained_watts: part of `headroom_watts` that is reserved for running jobs, because a watt yields
            more work in a running job than in a new job. The work per watt of a new job is its price. There
            is one value for each price in `work_price.PRICES`.
        reachable_headroom_watts: power that is free if all running jobs have their lowest limits. If devices
            are known to exceed these limits, the excess is subtracted.
        lowest_limit_watts: lowest limit of the budget that would be kept if the devices of all running jobs
            had their lowest power limits.
        free_watts: power that is free at the limits in force, including the power already promised to jobs.
        floor_watts: lowest committed power at which every running job keeps its floor.
        idle_watts: power under the budget without any job. The limit cannot be lower than this power. It is
            `BudgetInForce.constant_watts` for a budget that counts only jobs.
        running_idle_watts: idle power of the running jobs under a budget that counts only jobs; 0 for other
            budgets, whose `idle_watts` contains this power.
        shortfall_watts: power by which the limit is exceeded although every device has its floor.
        nodes, silent_nodes, distrusted_nodes: numbers of all nodes under the budget, of those that no longer
            report, and of those whose reports are implausible.
        unmeasured_nodes: number of nodes that report neither power nor a power limit.
    """

    name: str
    limit_watts: float
    measured_watts: float | None
    committed_watts: float
    fixed_watts: float
    capped_watts: float = 0.0
    headroom_watts: float = math.inf
    unlimited_idle_watts: float = 0.0
    retained_watts: tuple[float, ...] = ()
    reachable_headroom_watts: float = math.inf
    lowest_limit_watts: float = math.inf
    free_watts: float = math.inf
    floor_watts: float = 0.0
    idle_watts: float = 0.0
    running_idle_watts: float = 0.0
    shortfall_watts: float = 0.0
    nodes: int = 0
    silent_nodes: int = 0
    distrusted_nodes: int = 0
    unmeasured_nodes: int = 0


@dataclass(frozen=True, slots=True)
class BudgetedJobStatus:
    """Limits of one running job after a decision.

    Attributes:
        job_id: Slurm's job id.
        nodes: number of nodes that report the job.
        limits_watts: power limit of one device of the job, by kind of device; None means that the job needs
            no limit of a budget.
        measured_watts: measured power of the job's devices; None means that the power of at least one device
            is unknown.
        wanted_watts: expected power of the job's devices without limits.
        committed_watts: power that the job's devices cannot exceed at the limits in force.
        budget: name of the budget that determines the limits; None means that no budget limits the job.
        budgets: names of all budgets that count the job.
        keeps_slowdown: whether the job stays within its slowdown limit at `limits_watts`.
        has_slowdown_limit: whether the job has a slowdown limit.
        explanation: the decision in one sentence.
    """

    job_id: int
    nodes: int
    limits_watts: Mapping[str, float | None]
    measured_watts: float | None
    wanted_watts: float
    committed_watts: float
    budget: str | None
    budgets: tuple[str, ...]
    keeps_slowdown: bool
    has_slowdown_limit: bool
    explanation: str


class JobRange(NamedTuple):
    """Power of a node's devices in watts.

    Attributes:
        packages: maximum minus idle power of all packages together.
        gpu: maximum minus idle power of one GPU; 0 without GPUs.
        packages_idle: idle power of all packages together.
        gpu_idle: idle power of one GPU.
        packages_min: sum of the minimum power limits of all packages; None means that a package has no power
            limit.
        gpu_min: maximum over the GPUs of their minimum power limits; None means that a GPU has no power
            limit.
        package_model, gpu_model: product names of the packages and of the GPUs; empty if the node has several
            models or no device of this kind.
    """

    packages: float
    gpu: float
    packages_idle: float
    gpu_idle: float
    packages_min: float | None = None
    gpu_min: float | None = None
    package_model: str = ""
    gpu_model: str = ""


@dataclass(frozen=True, slots=True)
class BudgetedNodeStatus:
    """Power of one node after a decision of the power budgets.

    Attributes:
        node: Slurm's name of the node.
        state: `reporting`, `silent`, `safe`, `distrusted` or `off`.
        reason: reason for the value of `state`; may be empty.
        measured_watts: measured power; None if unknown.
        committed_watts: power with which the node is counted under its budgets.
        max_watts: maximum power of the node if its devices have no power limits.
        job_ids: ids of the jobs on the node.
        job_range: power that jobs can add on the node above idle.
    """

    node: str
    state: str
    reason: str
    measured_watts: float | None
    committed_watts: float
    max_watts: float
    job_ids: frozenset[int]
    job_range: JobRange


class BudgetCycle:
    """Result of one decision about the power budgets.

    The states of jobs and nodes are computed when they are first read. This first access must be made in the
    engine's thread.

    Args:
        time_s: time of the decision on the engine's clock.
        budgets: state of each budget, in the order of the configuration.
        poll_s: seconds between two polls of a node.
        jobs: function that returns the running jobs that nodes report, by job id.
        nodes: function that returns the nodes by name.
    """

    def __init__(
        self,
        time_s: float,
        budgets: Sequence[BudgetStatus],
        poll_s: float,
        jobs: Callable[[], Mapping[int, BudgetedJobStatus]],
        nodes: Callable[[], Mapping[str, BudgetedNodeStatus]],
    ) -> None:
        self.time_s, self.budgets, self.poll_s = time_s, tuple(budgets), poll_s
        self._jobs, self._nodes = jobs, nodes

    @functools.cached_property
    def jobs(self) -> Mapping[int, BudgetedJobStatus]:
        """Running jobs that nodes report, by job id."""
        return self._jobs()

    @functools.cached_property
    def nodes(self) -> Mapping[str, BudgetedNodeStatus]:
        """Nodes by name."""
        return self._nodes()
