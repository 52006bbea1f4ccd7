"""Settings of a simulation: discipline, budget, preemption, power states. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurm_energy.deferral import DeferralOptions, DeferralPolicy
from slurm_energy.power_saving.rule import PowerSavingRules
from slurm_energy.scheduling.backfill import Discipline
from slurm_energy.scheduling.ranking import Options
from slurm_energy.signals import SignalName
from slurm_energy.signals.feed import SignalFeed
from slurm_energy.simulator.constraints.constraints import Constraints
from slurm_energy.simulator.power.step_function import StepFunction


@dataclass(frozen=True, slots=True)
class Preemption:
    """Preemption of running jobs for jobs whose deadline is at risk.

    Attributes:
        checkpoint_s: interval of checkpoints in seconds. Infinity: an interrupted job loses all its work.
            0: it loses no work.
        restart_s: extra time of each start after an interruption.
        margin_s: a job with less slack than this is at risk.
    """

    checkpoint_s: float = float("inf")
    restart_s: float = 0.0
    margin_s: float = 60.0


@dataclass(frozen=True, slots=True)
class BudgetRules:
    """Rules by which a power budget is kept.

    Attributes:
        distribution: name of the policy that distributes the budget among running jobs.
        period_s: control period in seconds, after which decided limits are in force. 0: at once.
        floor_share: share of the range of a unit's power limit, above its minimum, that running jobs keep.
        slowdown_limit: slowdown of a job, as a fraction, that the budget causes only if it must; NaN: none.
        announced: whether steps of the budget are known ahead.
        interrupts: whether jobs are interrupted where lower limits do not suffice. Otherwise running jobs
            keep their floors, and no job starts whose floor would exceed the budget within its time limit.
    """

    distribution: str = "least-edp"
    period_s: float = 0.0
    floor_share: float = 0.0
    slowdown_limit: float = float("nan")
    announced: bool = True
    interrupts: bool = True


@dataclass(frozen=True, slots=True)
class PowerSaving:
    """Power saving by the forecast of idle gaps.

    Attributes:
        rules: parameters of the rule.
        reserve_nodes: warm reserve of each kind of nodes, in nodes.
        reserve_share: warm reserve as a share of each kind of nodes; the larger reserve applies.
    """

    rules: PowerSavingRules = field(default_factory=PowerSavingRules)
    reserve_nodes: int = 0
    reserve_share: float = 0.0


@dataclass(frozen=True, slots=True)
class Deferral:
    """Deferral of jobs with slack.

    Attributes:
        policy: deferral policy.
        options: its parameters.
        signal: signal by which running checkpointable jobs are suspended.
    """

    policy: DeferralPolicy
    options: DeferralOptions = field(default_factory=DeferralOptions)
    signal: SignalName = SignalName.PRICE


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    """Settings of one simulation in addition to cluster, workload and policy.

    Attributes:
        discipline: rule by which ranked jobs may start.
        interval_s: seconds between two scheduling passes; 0: a pass after each event.
        horizon_s: end of the simulation; None: when all jobs are done.
        budget_watts: power budget over time; None: no budget.
        hard_budget: whether the budget holds under every policy. Otherwise it holds only under policies that
            keep it themselves.
        budget_rules: how the budget is kept.
        preemption: settings of preemption for policies that preempt; None: no job is preempted.
        idle_off_s: idle time in seconds after which a node is switched off. None: nodes stay on.
        power_saving: power saving by the forecast of idle gaps; None: nodes are not switched off by it.
        deferral: deferral of jobs with slack; None: no job is held.
        signals: price, carbon intensity and other signals; None: none is known.
        half_life_s: half life of the users' usage, for fair shares.
        shares: fair shares by user name; other users have 1.
        options: options of the policy.
        kill_at_limit: whether jobs end at their time limit. Otherwise only backfill uses limits.
        constraints: licenses, partitions, QOS and reservations; None: only units and memory bind jobs.
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
