"""The objects that serve the power budgets of senergyctld under one configuration.

These objects are the engine, the limits, the inputs, and the admission of jobs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from slurm_energy.accounting.records.plausibility import MAX_WATTS
from slurm_energy.budget.power_table import NodePowerRange
from slurm_energy.config import Config
from slurm_energy.controller.budgets.admission import AdmissionReport, BudgetAdmission
from slurm_energy.controller.budgets.budget_limits import BudgetLimits
from slurm_energy.controller.budgets.budget_signals import SignalText
from slurm_energy.controller.budgets.engine import BudgetEngine
from slurm_energy.controller.budgets.facts import BudgetCycle, EngineSettings
from slurm_energy.controller.budgets.inputs import BudgetInputs
from slurm_energy.controller.budgets.licenses import BudgetHeadroom
from slurm_energy.controller.budgets.pending_power import ProgramKey
from slurm_energy.controller.deferral.begin_times import BeginTimes
from slurm_energy.controller.records.store import Store
from slurm_energy.controller.running_jobs import RunningJobCache
from slurm_energy.controller.tuning.advisor import CurveOracle
from slurm_energy.controller.tuning.history_cache import HistoryCache
from slurm_energy.log_once import RepeatedFailureLog
from slurm_energy.slurm.command import Runner
from slurm_energy.tuning.response_curve import ResponseCurve

PLAN_HOURS: Final = 24.0
Shared = tuple[Store, RunningJobCache, Runner, RepeatedFailureLog, Callable[[], CurveOracle | None]]


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """Input for the decision which pending jobs may start under the power budgets.

    `BudgetAdmission.update` makes this decision. It sets the number of certain licenses in Slurm to the
    free power of the budgets (`headrooms`) in watts. A job needs one license per watt, so that Slurm
    starts the job only if enough power is free.
    """

    unix_s: float
    headrooms: tuple[BudgetHeadroom, ...]
    counted_jobs: frozenset[int]
    nodes: Mapping[str, NodePowerRange]
    curves: Mapping[ProgramKey, ResponseCurve]


@dataclass(slots=True)
class BudgetParts:
    """The objects that keep power budgets, made from one configuration.

    If the configuration is reloaded, the engine stays, with the limits that it has set for nodes.

    Attributes:
        engine: decides about the power of nodes.
        limits: limits of the budgets over time.
        inputs: nodes, jobs and accounts.
        admission: decides which jobs may start.
        admission_report: result of the last admission.
        is_restored: whether the engine continues from the stored state.
    """

    engine: BudgetEngine
    limits: BudgetLimits
    inputs: BudgetInputs
    admission: BudgetAdmission
    admission_report: AdmissionReport = field(default_factory=AdmissionReport)
    is_restored: bool = False
    _promised: dict[str, float] = field(default_factory=dict)

    @classmethod
    def create(
        cls,
        config: Config,
        earlier: BudgetParts | None,
        history: HistoryCache | None,
        shared: Shared,
        begin_times: BeginTimes | None = None,
    ) -> BudgetParts:
        """Create the objects that control power budgets, for a configuration with budgets.

        Args:
            config: the configuration.
            earlier: objects before a reload, whose state the new objects take over; None means that no
                earlier objects exist.
            history: history of measured runs.
            shared: objects that the earlier and the new object share, namely database, running jobs, runner
                of Slurm's commands, log of failures, source of response curves of models.
            begin_times: begin times of pending jobs, shared with the other parts of senergyctld that delay
                jobs; None means that no other part delays jobs.

        Raises:
            ConfigError: a calendar cannot be read.
        """
        failures = shared[3]
        limits, settings = BudgetLimits(config, failures), engine_settings(config)
        if earlier is None:
            admission = BudgetAdmission(config, history, failures, begin_times=begin_times)
            return cls(BudgetEngine(settings), limits, BudgetInputs(*shared), admission)
        limits.adopt(earlier.limits)
        return cls(
            earlier.engine,
            limits,
            earlier.inputs,
            earlier.admission,
            earlier.admission_report,
            earlier.is_restored,
            earlier._promised,
        )

    def configure(self, config: Config) -> None:
        """Pass the settings of a configuration to the budget engine and to the admission of jobs."""
        self.engine.configure(engine_settings(config))
        self.admission.configure(config)

    def decide(self, unix_s: float, now_s: float, signals: Mapping[str, SignalText]) -> BudgetCycle:
        """Decide about the power limits of all nodes.

        Args:
            unix_s: current time in Unix seconds, for the limits of the budgets.
            now_s: current monotonic time in seconds.
            signals: last text of each signal (limit from a file or URL), by name of the budget.
        """
        self.limits.set_signals(signals)
        self.limits.read_calendars()
        self.engine.set_budgets(self.limits.in_force(unix_s, self.engine.reaction_s))
        # What Slurm may give to jobs is not known before the first admission.
        released = self._released_watts()
        promised = {name: self._promised.get(name, math.inf) + released for name in self.limits.names}
        self.engine.set_promised(promised)
        return self.engine.decide(now_s)

    def _released_watts(self) -> float:
        """Return the watts of the jobs that have ended since the last admission of new jobs.

        Slurm counts watts as licenses. Slurm may give the licenses of ended jobs to other jobs before the
        next admission corrects the number of free licenses.
        """
        running = self.engine.reported_jobs
        return math.fsum(watts for job, watts in self.admission_report.watts.items() if job not in running)

    def use_inputs(self) -> list[str]:
        """Pass the nodes and jobs of Slurm to the engine. Return the nodes that Slurm no longer has."""
        gone = self.engine.set_nodes(self.inputs.nodes) if self.inputs.nodes else []
        self.engine.set_jobs(self.inputs.jobs)
        return gone

    def restore(self, bodies: Mapping[str, str], now_s: float) -> list[str]:
        """Continue from the stored states of nodes after a restart of senergyctld.

        Args:
            bodies: stored state as JSON text, by node.
            now_s: current time.

        Returns:
            The nodes whose stored state is damaged.
        """
        states, damaged = {}, []
        for name, body in bodies.items():
            try:
                states[name] = json.loads(body)
            except (ValueError, RecursionError):
                damaged.append(name)
        damaged += self.engine.restore(states, now_s)
        self.is_restored = True
        return damaged

    def are_decided(self, cycle: BudgetCycle) -> bool:
        """Return whether a decision includes all configured budgets.

        A decision from before a reload may lack new budgets.
        """
        return {status.name for status in cycle.budgets}.issuperset(self.limits.names)

    def admission_request(self, cycle: BudgetCycle, unix_s: float) -> AdmissionRequest:
        """Return the input for the decision which jobs may start under the power budgets.

        Slurm may already start jobs until `end_admission` is called. The engine keeps the power for these
        jobs free. For a budget without a license in Slurm, this power is the larger of the old and the new
        headroom.
        """
        in_force = {budget.name: budget for budget in self.engine.budgets}  # may be newer than `cycle`
        headrooms = tuple(
            BudgetHeadroom(
                name=status.name,
                scope=budget.scope,
                limit_watts=status.limit_watts,
                floor_percent=budget.floor_percent,
                headroom_watts=status.headroom_watts,
                retained_watts=status.retained_watts,
                idle_watts=status.idle_watts,
                running_idle_watts=status.running_idle_watts,
                reachable_headroom_watts=status.reachable_headroom_watts,
                lowest_limit_watts=status.lowest_limit_watts,
                free_watts=status.free_watts,
                promised_watts=self._promised.get(status.name, math.inf),
                steps=[(s.unix_s, s.watts) for s in self.limits.steps(status.name, unix_s, PLAN_HOURS)],
            )
            for status in cycle.budgets
            if status.name in self.limits.names and (budget := in_force.get(status.name)) is not None
        )
        ranges = {
            name: NodePowerRange(*node.job_range)
            for name, node in cycle.nodes.items()
            if node.state not in ("silent", "off")
        }
        for name, watts in _promises(headrooms).items():
            if name not in self.admission_report.offers:
                self._promised[name] = max(watts, self._promised.get(name, math.inf))
        return AdmissionRequest(
            unix_s, headrooms, self.engine.reported_jobs, ranges, self.inputs.pending_curves
        )

    def admit(self, request: AdmissionRequest) -> None:
        """Let pending jobs start as far as the budgets have power for them.

        The method changes the licenses or the holds of jobs. It runs Slurm's commands.
        """
        self.admission_report = self.admission.update(
            request.unix_s, request.headrooms, request.counted_jobs, request.nodes, request.curves
        )

    def end_admission(self, request: AdmissionRequest) -> None:
        """Store the power that Slurm can give to new jobs until the next admission, under each budget.

        Decisions about power limits keep only this power free for new jobs. After a failed admission of
        jobs, the amount is unknown and counts as unlimited.
        """
        self.inputs.programs = self.admission.programs
        failed = bool(self.admission_report.problems)
        offers = dict(self.admission_report.offers)
        self._promised = {} if failed else _promises(request.headrooms) | offers


def engine_settings(config: Config) -> EngineSettings:
    """Return the settings of the engine for power budgets, from the configuration of senergyctld."""
    settings = config.budget
    return EngineSettings(
        enforces=settings.mode == "enforce",
        distribution=settings.distribution,
        period_s=settings.period_s,
        poll_s=settings.poll_s,
        lease_s=settings.lease_s,
        margin_percent=settings.margin_percent,
        counts_idle=settings.admission != "off",
        max_watts={**MAX_WATTS, **config.controller.max_watts},
    )


def _promises(headrooms: tuple[BudgetHeadroom, ...]) -> dict[str, float]:
    return {one.name: max(0.0, one.headroom_watts) for one in headrooms if not math.isnan(one.headroom_watts)}
