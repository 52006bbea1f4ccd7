"""Digital twin: a simulator of a real cluster, calibrated on measured jobs.

The twin replays the measured jobs as they ran, or with other means to save energy. Each partition becomes
one kind of nodes in the simulator. Jobs keep their number of nodes. The simulator decides when jobs start.
Source: thesis, section 6.3.4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import numpy as np

from slurm_energy import deferral
from slurm_energy.errors import UsageError
from slurm_energy.power_saving.power_down_rule import PowerSavingRules
from slurm_energy.scheduling import policy
from slurm_energy.scheduling.backfill import Discipline
from slurm_energy.scheduling.ranking import Options
from slurm_energy.signals import SignalName
from slurm_energy.signals.feed import SignalFeed, SignalSource
from slurm_energy.signals.forecast import ForecastMode
from slurm_energy.signals.signal_series import SignalSeries
from slurm_energy.simulator import engine
from slurm_energy.simulator.cluster import NodeKind
from slurm_energy.simulator.kernels import column_engine, fast_path
from slurm_energy.simulator.power.step_function import StepFunction
from slurm_energy.simulator.results.simulation_result import SimulationResult
from slurm_energy.simulator.schedule_settings import BudgetRules, Deferral, PowerSaving, ScheduleSettings
from slurm_energy.simulator.workloads.workload import Workload, workload
from slurm_energy.study.data.days import HOUR_S, spread
from slurm_energy.study.data.jobs_table import Floats, JobsTable
from slurm_energy.study.data.kpis import EnergySeries

SOURCE: Final = "simulation of the twin"
_MIN_RUN_S: Final = 1.0
_DEFAULT_POWER: Final = PowerSavingRules()


@dataclass(frozen=True, slots=True)
class TwinKind:
    """Nodes of a partition in the digital twin, the simulated copy of a cluster.

    Attributes:
        nodes: number of nodes.
        idle_watts: power of an idle node. The power of a job includes this idle power.
        off_watts, boot_s, boot_watts, shutdown_s, shutdown_watts: as in `[power_saving]` of energy.toml.
        min_watts: minimum power to which a power budget can limit a node; 0 means that the power of a node
            cannot be limited.
    """

    nodes: int
    idle_watts: float
    off_watts: float = 5.0
    boot_s: float = 180.0
    boot_watts: float = 200.0
    shutdown_s: float = 30.0
    shutdown_watts: float = 150.0
    min_watts: float = 0.0


@dataclass(frozen=True, slots=True)
class TwinSettings:
    """Calibrated settings of the twin, which is a simulation of a real site.

    Attributes:
        kinds: kind of node by partition. Jobs of other partitions run on the first kind.
        ranking: scheduling policy that the site uses at present.
        discipline: rule that decides which ranked jobs may start, for example backfill.
        default_watts: power of a node for jobs without measured energy.
        uses_limits: whether backfill plans with the time limits of jobs. Otherwise backfill plans with the
            run times of jobs.
        start_delay_s: minimum time from the submission to the start of a job, caused by scheduling passes
            and prolog.
    """

    kinds: Mapping[str, TwinKind]
    ranking: str = "fcfs"
    discipline: str = "easy"
    default_watts: float = 0.0
    uses_limits: bool = True
    start_delay_s: float = 0.0

    def document(self) -> dict[str, Any]:
        """Return the settings as a JSON object."""
        return asdict(self) | {"kinds": {name: asdict(kind) for name, kind in self.kinds.items()}}


def twin_settings_of(document: Mapping[str, Any]) -> TwinSettings:
    """Return the calibrated settings of the twin (the simulated site) from a JSON object.

    The JSON object was made by `TwinSettings.document`.

    Raises:
        UsageError: the object is damaged.
    """
    try:
        kinds = {name: TwinKind(**kind) for name, kind in document["kinds"].items()}
        return TwinSettings(**{**document, "kinds": kinds})
    except (TypeError, KeyError, AttributeError) as error:
        raise UsageError("the twin", f"is damaged: {error!r}", "run senergy study model again") from None


@dataclass(frozen=True, slots=True)
class TwinDeferral:
    """Deferral of jobs in a simulation of the site (twin).

    Attributes:
        policy: `cheapest` or `cleanest`.
        slack_s: maximum time by which each job may be deferred after its submission, shape (n,); NaN means
            that the job may not be deferred.
        series: price or carbon intensity over Unix time. The simulated controller knows past values, from
            which it forecasts future values.
    """

    policy: str
    slack_s: Floats
    series: SignalSeries

    @property
    def signal(self) -> SignalName:
        """Signal that decides when deferred jobs start: price or carbon intensity."""
        return SignalName.CARBON if self.policy == "cleanest" else SignalName.PRICE


@dataclass(frozen=True, slots=True)
class TwinChange:
    """Changes of the site whose effect the twin (simulator of the site) computes.

    The defaults replay the present site.

    Attributes:
        ranking: scheduling policy; an empty value means the present policy of the site.
        weights: weights of the scheduling policy.
        budget_watts: power budget of the cluster; None means no budget.
        powers_down: whether idle nodes are powered down.
        deferral: deferral of jobs with slack; None means no deferral.
        time_ratio, power_ratio: run time and power of each job relative to the untuned job, shape (n,); None
            means that jobs are not tuned.
        caps: operating points to which a power budget can limit jobs, by class of the jobs. A point is the
            time and the power relative to the untuned job. Jobs of other classes run at full power or wait.
    """

    ranking: str = ""
    weights: Mapping[str, float] = field(default_factory=dict)
    budget_watts: float | None = None
    powers_down: bool = False
    deferral: TwinDeferral | None = None
    time_ratio: Floats | None = None
    power_ratio: Floats | None = None
    caps: Mapping[str, Sequence[tuple[float, float]]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TwinRun:
    """Result of a simulation with the twin, the simulator that is calibrated for a site.

    Attributes:
        jobs: the jobs with simulated start, end, energy and speed. The start of a job that never ran is
            unknown.
        energy: energy of all nodes by hour.
        notes: remarks of the simulator about the run.
    """

    jobs: JobsTable
    energy: EnergySeries
    notes: tuple[str, ...] = ()


def simulate(
    jobs: JobsTable, settings: TwinSettings, change: TwinChange | None = None, seed: int = 0
) -> TwinRun:
    """Simulate jobs with the twin, which is a calibrated simulation of the site's cluster.

    Args:
        jobs: jobs to simulate. Jobs without a known submission, start or end are left out. Run times and
            energies must be those of untuned jobs.
        settings: calibrated settings of the twin.
        change: means to save energy that differ from the present site, such as a power budget; None means
            that the present site is simulated without changes.
        seed: seed of the simulator's random numbers.

    Raises:
        UsageError: there is no job, or a means (lever) is unknown.
    """
    change = change or TwinChange()
    ran = jobs.run_s >= _MIN_RUN_S
    if not ran.any():
        raise UsageError("the twin", "has no finished job to simulate", "use more data")
    time_ratio = np.ones(jobs.count) if change.time_ratio is None else change.time_ratio
    power_ratio = np.ones(jobs.count) if change.power_ratio is None else change.power_ratio
    part = jobs.where(ran)
    origin_s = float(part.submit_s.min())
    work = _workload(part, settings, time_ratio[ran], power_ratio[ran], origin_s)
    if change.caps:
        work = replace(work, cap_points=_cap_points(part, time_ratio[ran], power_ratio[ran], change.caps))
    held = None
    if change.deferral is not None:
        slack_s = change.deferral.slack_s[ran][np.argsort(part.submit_s, kind="stable")]
        work = replace(work, slack_s=slack_s)
        series = change.deferral.series.shifted(-origin_s)
        held = replace(change.deferral, series=series)
    result = _run(work, settings, replace(change, deferral=held), seed)
    return TwinRun(
        _simulated_jobs(part, result, origin_s),
        _hourly_energy(result, origin_s),
        tuple(result.notes),
    )


def _workload(
    jobs: JobsTable, settings: TwinSettings, time_ratio: Floats, power_ratio: Floats, origin_s: float
) -> Workload:
    names = list(settings.kinds)
    kind_of = np.array([names.index(name) if name in settings.kinds else 0 for name in jobs.partition])
    sizes = np.array([kind.nodes for kind in settings.kinds.values()])[kind_of]
    nodes = np.where(np.isnan(jobs.nodes), 1, np.maximum(1, jobs.nodes))
    units = np.minimum(np.ceil(nodes), sizes).astype(np.int64)  # the twin may have fewer nodes than once
    watts = np.where(np.isnan(jobs.power_watts), settings.default_watts * units, jobs.power_watts)
    run_s = jobs.run_s * time_ratio
    limit_s = jobs.time_limit_s if settings.uses_limits else np.full(jobs.count, np.nan)
    users, user = np.unique(jobs.user, return_inverse=True)
    return workload(
        np.arange(jobs.count + 1),
        {
            "submit_s": jobs.submit_s - origin_s + settings.start_delay_s,
            "user": user,
            "time_limit_s": np.fmax(limit_s, run_s),
        },
        {
            "hardware": kind_of,
            "units": units,
            "time_s": run_s,
            "power_watts": watts * power_ratio,
            "predicted_time_s": run_s,
            "predicted_watts": watts * power_ratio,
        },
        users=tuple(users.tolist()),
    )


def _cap_points(
    jobs: JobsTable,
    time_ratio: Floats,
    power_ratio: Floats,
    caps: Mapping[str, Sequence[tuple[float, float]]],
) -> dict[int, tuple[Floats, Floats]]:
    """Return the effect of power limits on each job: (relative powers, relative times).

    The keys of the result are the indices of the jobs in the order of submission. Jobs without a known
    effect are missing.
    """
    found = {}
    for row, job in enumerate(np.argsort(jobs.submit_s, kind="stable").tolist()):
        points = np.array(caps.get(str(jobs.job_class[job]), ())).reshape(-1, 2)
        times, powers = points[:, 0] / time_ratio[job], points[:, 1] / power_ratio[job]
        order = np.argsort(powers, kind="stable")
        order = order[powers[order] < 1]
        if len(order):
            found[row] = powers[order], times[order]
    return found


def _run(work: Workload, settings: TwinSettings, change: TwinChange, seed: int) -> SimulationResult:
    kinds = [
        NodeKind(
            name=name,
            nodes=kind.nodes,
            units=1,
            idle_watts=kind.idle_watts,
            unit_idle_watts=kind.idle_watts,
            off_watts=kind.off_watts,
            boot_s=kind.boot_s,
            boot_watts=kind.boot_watts,
            shutdown_s=kind.shutdown_s,
            shutdown_watts=kind.shutdown_watts,
            unit_min_watts=kind.min_watts,
        )
        for name, kind in settings.kinds.items()
    ]
    chosen, held = policy(change.ranking or settings.ranking), change.deferral
    schedule = ScheduleSettings(
        discipline=Discipline(settings.discipline),
        budget_watts=StepFunction.constant(change.budget_watts) if change.budget_watts else None,
        hard_budget=change.budget_watts is not None,
        budget_rules=BudgetRules(interrupts=False),
        preemption=None,
        power_saving=PowerSaving(_DEFAULT_POWER, reserve_share=0.05) if change.powers_down else None,
        options=Options(weights=dict(change.weights)),
        deferral=None if held is None else Deferral(deferral.policy(held.policy), signal=held.signal),
        signals=None if held is None else SignalFeed({held.signal: _source(held.series)}),
        seed=seed,
    )
    if fast_path.supports(work, kinds, chosen, schedule):
        return fast_path.simulate(work, kinds, schedule)
    if column_engine.pays(work.count) and column_engine.supports(work, kinds, chosen, schedule):
        return column_engine.simulate(work, kinds, chosen, schedule)
    return engine.simulate(work, kinds, chosen, schedule)


def _source(series: SignalSeries) -> SignalSource:
    return SignalSource(series, ForecastMode.HISTORY)


def _simulated_jobs(jobs: JobsTable, result: SimulationResult, origin_s: float) -> JobsTable:
    """Return the jobs with the times and energies of a simulation.

    The column `speed` is the speed relative to the run time in the data.
    """
    accounts = result.accounts
    row = np.empty(jobs.count, np.int64)
    row[np.argsort(jobs.submit_s, kind="stable")] = np.arange(jobs.count)  # the simulator sorts by submission
    start_s, end_s, joules = (
        values[row] for values in (accounts.start_s, accounts.end_s, accounts.energy_joules)
    )
    ended = ~np.isnan(end_s)
    run_s = np.where(ended, end_s - start_s, np.nan)
    own_speed = np.where(np.isnan(jobs.speed), 1.0, jobs.speed)
    return jobs.with_columns(
        start_s=start_s + origin_s,
        end_s=end_s + origin_s,
        energy_joules=np.where(ended, joules, np.nan),
        speed=own_speed * jobs.run_s / np.where(run_s > 0, run_s, np.nan),
    )


def _hourly_energy(result: SimulationResult, origin_s: float) -> EnergySeries:
    """Return the energy of the simulated cluster for each full hour of the calendar."""
    times_s, watts = result.power
    ends_s = np.append(times_s[1:], max(result.end_s, float(times_s[-1])))
    first = np.floor((origin_s + times_s[0]) / HOUR_S)
    last = np.ceil((origin_s + ends_s[-1]) / HOUR_S)
    edges_s = np.arange(first, max(last, first + 1) + 1) * HOUR_S
    joules = spread(times_s + origin_s, ends_s + origin_s, watts * (ends_s - times_s), edges_s)
    return EnergySeries(edges_s[:-1], edges_s[1:], joules, SOURCE)
