"""How a simulation schedules: discipline, budget, preemption, power states. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurm_energy.scheduling.backfill import Discipline
from slurm_energy.scheduling.ranking import Options
from slurm_energy.simulator.step_function import StepFunction


@dataclass(frozen=True, slots=True)
class Preemption:
    """How running jobs make way for urgent ones.

    Attributes:
        checkpoint_s: work is saved this often; infinity: an interrupted job starts anew; 0: nothing is lost.
        restart_s: extra time of each start after an interruption.
        margin_s: a job with less slack than this is at risk.
    """

    checkpoint_s: float = float("inf")
    restart_s: float = 0.0
    margin_s: float = 60.0


@dataclass(frozen=True, slots=True)
class ScheduleSettings:
    """Everything about a run that is not cluster, workload or policy.

    Attributes:
        discipline: see `Discipline`.
        interval_s: time between two looks at the queue; 0: at each event.
        horizon_s: end of the simulation; None: when all jobs are done.
        budget_watts: power budget over time; None for none.
        hard_budget: every policy keeps the budget; else only those that say so.
        preemption: for policies that preempt; None: nobody does.
        idle_off_s: nodes without work for so long are switched off; None: never.
        half_life_s: in which usage fades for fair shares.
        shares: of the users, by name; users without one have 1.
        options: for the policy.
        seed: for failures of nodes.
    """

    discipline: Discipline = Discipline.EASY
    interval_s: float = 0.0
    horizon_s: float | None = None
    budget_watts: StepFunction | None = None
    hard_budget: bool = False
    preemption: Preemption | None = field(default_factory=Preemption)
    idle_off_s: float | None = None
    half_life_s: float = float("inf")
    shares: dict[str, float] = field(default_factory=dict)
    options: Options = field(default_factory=Options)
    seed: int = 0
