"""Settings of a simulation. Plain data.

Examples are the scheduling discipline, the power budget, preemption and power states.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from slurm_energy.deferral import DeferralOptions, DeferralPolicy
from slurm_energy.power_saving.power_down_rule import PowerSavingRules
from slurm_energy.scheduling.backfill import Discipline
from slurm_energy.scheduling.ranking import Options
from slurm_energy.signals import SignalName
from slurm_energy.signals.feed import SignalFeed
from slurm_energy.simulator.constraints.constraints import Constraints
from slurm_energy.simulator.power.step_function import StepFunction


@dataclass(frozen=True, slots=True)
class Preemption:
    """Settings of preemption: running jobs are interrupted for jobs whose deadline is at risk.

    Attributes:
        checkpoint_s: interval of checkpoints in seconds. With infinity, an interrupted job loses all its
            work. With 0, an interrupted job loses no work.
        restart_s: extra seconds that each start after an interruption takes.
        margin_s: slack in seconds below which the deadline of a job is at risk.
    """

    checkpoint_s: float = float("inf")
    restart_s: float = 0.0
    margin_s: float = 60.0


@dataclass(frozen=True, slots=True)
class BudgetRules:
    """Rules by which a power budget is kept.

    Attributes:
        distribution: name of the policy that distributes the budget among running jobs.
        period_s: control period in seconds. Decided limits are in force one period after the decision. With
            0, decided limits are in force at once.
        floor_share: floor of running jobs: the power limit that they keep in any case. It is a fraction of a
            unit's range of power limits; 0 is the lowest limit, 1 is the highest limit.
        slowdown_limit: slowdown limit of jobs, as a fraction. A job is slowed further only if the budget
            cannot be kept otherwise. NaN means no limit.
        announced: whether changes of the budget are known before they apply.
        interrupts: whether jobs are interrupted if lower limits do not suffice. If not, running jobs keep
            their floors, and a job does not start if its floor would exceed the budget within the job's time
            limit.
    """

    distribution: str = "least-edp"
    period_s: float = 0.0
    floor_share: float = 0.0
    slowdown_limit: float = float("nan")
    announced: bool = True
    interrupts: bool = True


@dataclass(frozen=True, slots=True)
class PowerSaving:
    """Settings of simulated power saving, which powers down nodes that are expected to stay idle.

    Attributes:
        rules: parameters of the rule that decides which nodes are powered down or up.
        reserve_nodes: number of idle nodes of each kind that stay on (warm reserve).
        reserve_share: warm reserve as a fraction of the nodes of each kind. Of the two reserves, the larger
            one applies.
    """

    rules: PowerSavingRules = field(default_factory=PowerSavingRules)
    reserve_nodes: int = 0
    reserve_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Deferral:
    """Settings for the deferral of jobs in a simulation.

    Deferral delays jobs within the delay (slack) that their users permit.

    Attributes:
        policy: deferral policy.
        options: parameters of the deferral policy.
        signal: signal that decides when running checkpointable jobs are suspended.
    """

    policy: DeferralPolicy
    options: DeferralOptions = field(default_factory=DeferralOptions)
    signal: SignalName = SignalName.PRICE


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    """Settings of one simulation in addition to cluster, workload and policy.

    Attributes:
        discipline: rule that decides which ranked jobs may start, for example backfill.
        interval_s: seconds between two scheduling passes; 0 means a pass after each event.
        horizon_s: end of the simulation; None means that the simulation ends when all jobs are done.
        budget_watts: power budget over time; None without a budget.
        hard_budget: whether the budget must be kept under every policy. Otherwise it is kept only under
            policies that enforce the budget (`Policy.keeps_budget`).
        budget_rules: rules by which the budget is kept.
        preemption: settings of preemption for policies that preempt; None if no job is preempted.
        idle_off_s: idle time in seconds after which a node is switched off. None means that nodes stay on.
        power_saving: power saving by the forecast of idle gaps; None if nodes are not powered down by
            forecast.
        deferral: deferral of jobs that may be delayed; None if no job is deferred.
        signals: price, carbon intensity and other signals; None if no signal is known.
        half_life_s: half life of the users' usage, for fair shares.
        shares: fair shares by user name. A user without an entry has the share 1.
        options: parameters of the scheduling policy.
        kill_at_limit: whether jobs end at their time limit. Otherwise only backfill uses limits.
        constraints: licenses, partitions, QOS and reservations; None if only units and memory restrict jobs.
        seed: seed of the random node failures.
    """

    discipline: Discipline = Discipline.EASY
    interval_s: float = 0.0
    horizon_s: float | None = None
    budget_watts: StepFunction | None = None
    hard_budget: bool = False
    budget_rules: BudgetRules = field(default_factory=BudgetRules)
    preemption: Preemption | None = field(default_factory=Preemption)
    idle_off_s: float | None = None
    power_saving: PowerSaving | None = None
    deferral: Deferral | None = None
    signals: SignalFeed | None = None
    half_life_s: float = float("inf")
    shares: dict[str, float] = field(default_factory=dict)
    options: Options = field(default_factory=Options)
    kill_at_limit: bool = False
    constraints: Constraints | None = None
    seed: int = 0
