"""Jobs and policy of a simulation as the arrays (columns) that compiled code reads.

Each row of `JobColumns` is a job. Further columns describe the shapes of the jobs, the possible ways to run
them. Jobs with similar scores and sizes are neighbours. This order lets `pending_tree` skip many jobs at
once.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from slurm_energy.scheduling.backfill import Discipline
from slurm_energy.scheduling.queue import Bools, Floats, Ints
from slurm_energy.scheduling.registry import Policy
from slurm_energy.simulator.deadline_preemption import all_at_risk_s
from slurm_energy.simulator.kernels.compiled import compiled, compiled_entry
from slurm_energy.simulator.schedule_settings import ScheduleSettings
from slurm_energy.simulator.workloads.workload import Workload

(
    FCFS,
    SJF,
    ZEUS,
    HADES,
    THEMIS,
    POLLUX,
    CHRONOS,
    KAIROS,
    BLEND,
    MULTIFACTOR,
    AURACHRONOS,
    LEAN,
    METIS,
) = range(13)
CODES: Final = {
    "fcfs": FCFS,
    "sjf": SJF,
    "zeus": ZEUS,
    "charon": ZEUS,
    "hades": HADES,
    "themis": THEMIS,
    "pollux": POLLUX,
    "chronos": CHRONOS,
    "kairos": KAIROS,
    "blend": BLEND,
    "multifactor": MULTIFACTOR,
    "aurachronos": AURACHRONOS,
    "lean": LEAN,
    "metis": METIS,
}
"""Number of each policy that compiled code can simulate."""
LEAN_POLICIES: Final = (ZEUS, HADES, KAIROS, BLEND, AURACHRONOS, LEAN)
"""Policies that choose the shape with the lowest `shape_value`; the others choose the fastest one."""
_URGENT_FIRST: Final = (CHRONOS, KAIROS, AURACHRONOS, METIS)
USAGE_POLICIES: Final = (BLEND, HADES, MULTIFACTOR, THEMIS)
"""Policies whose scores depend on the usage of users."""
WEIGHTS: Final = {
    KAIROS: {"excess": 1.8, "patience": 8.0},
    BLEND: {"edp": 1.0, "fair": 0.5, "deadline": 2.0, "age": 0.5},
    MULTIFACTOR: {"age": 1000.0, "fairshare": 10_000.0, "jobsize": 1000.0},
    METIS: {"thrift": 1.5, "impatience": 3.0, "delay": 0.4, "crowd": 0.5},
}
"""Default weights of the policies, in the order of `PolicyRules.weights`."""
STRICT, EASY, CONSERVATIVE, PACKING = range(4)
_DISCIPLINES: Final = {
    Discipline.STRICT: STRICT,
    Discipline.EASY: EASY,
    Discipline.CONSERVATIVE: CONSERVATIVE,
    Discipline.PACKING: PACKING,
}

(
    SUBMIT_S,
    DEADLINE_S,
    LIMIT_S,
    KILL_S,
    SIZE,
    KEY,
    LEFT,
    ALLOWED,
    SHORTEST_S,
    RISK_S,
    LATEST_S,
    RESTART_S,
) = range(12)
"""Columns of `JobColumns.real`."""
ROW, USER, ID_RANK, PLACE, FIRST, LAST, URGENT, FASTEST, LEANEST, GOOD, KEY_RANK = range(11)
"""Columns of `JobColumns.whole`."""
TIME_S, WATTS, RUN_TIME_S, RUN_WATTS, EXTRA_WATTS = range(5)
"""Columns of `JobColumns.load`."""
KIND, UNITS, POSSIBLE = range(3)
"""Columns of `JobColumns.need`."""
_ROUNDING: Final = 1e-15
"""Relative rounding error of a sum of two floats, times four."""


class JobColumns(NamedTuple):
    """Columns of all n jobs and of their m shapes (ways to run a job).

    Attributes:
        real: columns of real numbers, shape (n, 12). SUBMIT_S and DEADLINE_S are times. LIMIT_S is the time
            limit (NaN means none), and KILL_S the run time after which the job is killed (infinity means
            never). SIZE is the requested fraction of the cluster. KEY is the value by which the policy sorts
            jobs. LEFT is the fraction of the work that remains. ALLOWED is used by the policy `kairos`: a
            shape counts as good if its energy-delay product is at most ALLOWED. SHORTEST_S is the run time
            in the fastest shape, even if this shape is not possible. RISK_S is the time from which the
            deadline is at risk. LATEST_S is a lower bound of the deadline minus the run time. RESTART_S is
            the extra time of the next start.
        whole: columns of integers, shape (n, 11). ROW is the row in the workload. USER is the index of the
            user. ID_RANK is the position by job id, PLACE the position by submission and job id, and
            KEY_RANK the position by KEY. The shapes of the job are the rows FIRST to LAST - 1. URGENT is
            whether the job has a deadline. FASTEST, LEANEST and GOOD are possible shapes; -1 means none.
            FASTEST is the shape with the shortest time. LEANEST is the shape with the lowest `shape_value`.
            GOOD is the shape with the lowest `shape_value` among the good shapes.
        load: time and power of each shape, shape (m, 5): predicted TIME_S and WATTS, real RUN_TIME_S and
            RUN_WATTS, and EXTRA_WATTS, the power above the idle power of the shape's units.
        need: resources of each shape, shape (m, 3): KIND of nodes, number of UNITS, and whether the shape is
            POSSIBLE on this cluster.
        arrival: rows of the jobs in the order of arrival, shape (n,).
    """

    real: Floats
    whole: Ints
    load: Floats
    need: Ints
    arrival: Ints


class PolicyRules(NamedTuple):
    """Parameters of a policy, and the discipline.

    Attributes:
        code: number of the policy, as in `CODES`.
        discipline: STRICT, EASY, CONSERVATIVE or PACKING.
        age_weight, wait_bound_s, max_age_s: three parameters, as in `Options`: the weight of the waiting time
            per second, the bound on waiting, and the waiting time at which the age factor reaches 1.
        weights: weights of the policy in the order of `WEIGHTS`, shape (4,).
        urgent_first: whether jobs with a deadline come before others.
        preempts: whether jobs are interrupted for jobs whose deadline is at risk.
        checkpoint_s, restart_s: interval of checkpoints, and extra time of each restart, as in `Preemption`.
        interval_s: seconds between two scheduling passes.
        horizon_s: end of the simulation; infinity means that the simulation ends when all jobs are done.
    """

    code: int
    discipline: int
    age_weight: float
    wait_bound_s: float
    max_age_s: float
    weights: Floats
    urgent_first: bool
    preempts: bool
    checkpoint_s: float
    restart_s: float
    interval_s: float
    horizon_s: float


def rules(policy: Policy, settings: ScheduleSettings) -> PolicyRules:
    """Return the rules of a built-in policy under the settings of a simulation."""
    code, options, preemption = CODES[policy.name], settings.options, settings.preemption
    weights = np.zeros(4)
    for index, (term, default) in enumerate(WEIGHTS.get(code, {}).items()):
        weights[index] = options.weight(term, default)
    return PolicyRules(
        code,
        _DISCIPLINES[settings.discipline],
        float(options.age_weight),
        float(options.wait_bound_s),
        float(options.max_age_s),
        weights,
        code in _URGENT_FIRST,
        bool(policy.preempts and preemption),
        float(preemption.checkpoint_s) if preemption else float("inf"),
        float(preemption.restart_s) if preemption else 0.0,
        float(settings.interval_s),
        float("inf") if settings.horizon_s is None else float(settings.horizon_s),
    )


def job_columns(
    jobs: Workload,
    total: Ints,
    unit_idle_watts: Floats,
    policy: PolicyRules,
    margin_s: float,
    *,
    kills: bool,
) -> JobColumns:
    """Return the table of jobs with which the compiled simulator works, for one scheduling policy.

    Args:
        jobs: the workload.
        total: units of the cluster by kind of nodes.
        unit_idle_watts: idle power of a unit by kind of nodes.
        policy: parameters of the scheduling policy.
        margin_s: slack in seconds below which the deadline of a job is at risk, as in `Preemption`.
        kills: whether jobs are killed at their time limits.
    """
    count = jobs.count
    real, whole = np.empty((count, 12)), np.empty((count, 11), np.int64)
    real[:, SUBMIT_S], real[:, DEADLINE_S] = jobs.submit_s, jobs.deadline_s
    real[:, LIMIT_S], real[:, SIZE] = jobs.time_limit_s, jobs.sizes(total)
    real[:, KILL_S] = np.where(np.isnan(jobs.time_limit_s), np.inf, jobs.time_limit_s) if kills else np.inf
    real[:, LEFT], real[:, RESTART_S] = 1.0, 0.0
    whole[:, ROW], whole[:, USER] = np.arange(count), jobs.user
    whole[:, ID_RANK] = _ranks(jobs.job_id)
    whole[:, PLACE] = _ranks(jobs.job_id, jobs.submit_s)
    whole[:, FIRST], whole[:, LAST] = jobs.first[:-1], jobs.first[1:]
    whole[:, URGENT] = ~np.isnan(jobs.deadline_s)
    columns = JobColumns(real, whole, *_shape_columns(jobs, total, unit_idle_watts), np.arange(count))
    refresh_all(policy, columns)
    whole[:, KEY_RANK] = _ranks(whole[:, ID_RANK], real[:, KEY]) if policy.code == BLEND else 0
    real[:, RISK_S] = all_at_risk_s(jobs, margin_s) if policy.preempts else np.inf
    real[:, LATEST_S] = _latest_s(policy, columns)
    order = _order(policy, columns)
    arrival = np.empty(count, np.int64)
    arrival[order] = np.arange(count)
    return columns._replace(real=real[order], whole=whole[order], arrival=arrival)


def _shape_columns(jobs: Workload, total: Ints, unit_idle_watts: Floats) -> tuple[Floats, Ints]:
    load, need = np.empty((len(jobs.units), 5)), np.empty((len(jobs.units), 3), np.int64)
    load[:, TIME_S], load[:, WATTS] = jobs.predicted_time_s, jobs.predicted_watts
    load[:, RUN_TIME_S], load[:, RUN_WATTS] = jobs.time_s, jobs.power_watts
    extra_watts = jobs.power_watts - unit_idle_watts[jobs.hardware] * jobs.units
    load[:, EXTRA_WATTS] = (extra_watts - jobs.power_watts) + jobs.power_watts
    need[:, KIND], need[:, UNITS] = jobs.hardware, jobs.units
    need[:, POSSIBLE] = jobs.units <= total[jobs.hardware]
    return load, need


def _ranks(*keys: np.ndarray) -> Ints:
    """Return the position that each job would have if the jobs were sorted by the given keys.

    Each key is an array with one value per job. The last key is the primary key.
    """
    if np.all(keys[-1][1:] > keys[-1][:-1]):
        return np.arange(len(keys[-1]))
    ranks = np.empty(len(keys[-1]), np.int64)
    ranks[np.lexsort(keys)] = np.arange(len(ranks))
    return ranks


def _order(policy: PolicyRules, jobs: JobColumns) -> Ints:
    """Return the order in which the scheduling policy ranks the jobs.

    The jobs are sorted by several criteria, the most important first:

    - whether they have a deadline;
    - the size of the chosen shape (way to run the job);
    - the user;
    - the column KEY, the value by which the policy sorts jobs.

    Under the policy `metis`, the jobs are sorted by slack (time that a job can still wait), then by
    energy-delay product.
    """
    if policy.code == METIS:
        ranks, urgent = jobs.whole[:, ID_RANK], jobs.whole[:, URGENT]
        by_slack = [np.where(urgent, jobs.real[:, column], 0.0) for column in (DEADLINE_S, SHORTEST_S)]
        key = np.where(urgent, jobs.real[:, LATEST_S], jobs.real[:, KEY])
        return np.lexsort((ranks, *by_slack, key, 1 - urgent)).astype(np.int64)
    choice = jobs.whole[:, LEANEST if policy.code in LEAN_POLICIES else FASTEST]
    size_class = np.zeros(len(choice))
    if len(choice) and policy.discipline != PACKING:
        width = np.frexp(np.maximum(1, jobs.need[choice, UNITS]))[1]
        size_class = np.where(choice >= 0, 64.0 * jobs.need[choice, KIND] + width, -1.0)
    size_class += 1e9 * jobs.whole[:, URGENT]
    by_slack = (jobs.whole[:, URGENT] == 1) & (policy.code in (CHRONOS, AURACHRONOS))
    keys = [jobs.whole[:, ID_RANK], np.where(by_slack, jobs.real[:, LATEST_S], jobs.real[:, KEY])]
    if policy.code in USAGE_POLICIES:
        keys.append(jobs.whole[:, USER])
    order: Ints = np.lexsort((*keys, size_class)).astype(np.int64)
    return order


def _latest_s(policy: PolicyRules, jobs: JobColumns) -> Floats:
    """Return the latest time at which each job must start to meet its deadline, as a lower bound.

    This time is the deadline minus the run time. The bound assumes that all work of the job remains. A job
    may run in several shapes (numbers and kinds of resources), so there are several possible run times. The
    following one is used:

    - For the policy `metis`: the shortest run time of all shapes, even of shapes that the cluster
      cannot run.
    - For the discipline `packing`: the longest run time of the possible shapes, because a slow
      shape may be the only one that fits.
    - Otherwise: the shortest run time of the possible shapes.
    """
    if not len(jobs.whole):
        return np.zeros(0)
    longest_s = jobs.load[jobs.whole[:, FASTEST], TIME_S]
    if policy.code == METIS:
        longest_s = jobs.real[:, SHORTEST_S]
    elif policy.discipline == PACKING:
        longest_s = np.maximum.reduceat(jobs.load[:, TIME_S], jobs.whole[:, FIRST])
    deadline_s = jobs.real[:, DEADLINE_S]
    latest_s: Floats = deadline_s - longest_s - _ROUNDING * (np.abs(deadline_s) + longest_s)
    return latest_s


def runnable(jobs: JobColumns) -> Bools:
    """Return whether each job can run on the cluster, shape (n,).

    A job can run if the cluster has enough GPUs, nodes or cores for at least one of the possible sets of
    resources with which the job may run.
    """
    if not len(jobs.whole):
        return np.zeros(0, np.bool_)
    possible = np.concatenate([[0], np.cumsum(jobs.need[:, POSSIBLE])])
    some: Bools = possible[jobs.whole[:, LAST]] > possible[jobs.whole[:, FIRST]]
    return some


@compiled_entry()
def refresh_all(policy: PolicyRules, jobs: JobColumns) -> None:
    """Recompute those columns of all jobs whose values depend on the remaining work of the job."""
    for job in range(len(jobs.whole)):
        refresh(policy, jobs, job)


@compiled
def shape_value(code: int, jobs: JobColumns, shape: int, left: float) -> float:
    """Return the value by which a scheduling policy chooses among the shapes of a job.

    A shape is one way to run the job. The value is the energy-delay product. Under the policy `lean`, it is
    the power per unit (GPU, core or node). A lower value is better.

    Args:
        code: number of the policy, one of `LEAN_POLICIES`.
        jobs: columns of all jobs and their shapes.
        shape: row of the shape in `jobs`.
        left: fraction of the job's work that remains.
    """
    if code == LEAN:
        return float(jobs.load[shape, WATTS] / max(1, jobs.need[shape, UNITS]))
    time_s = jobs.load[shape, TIME_S] * left
    return float(jobs.load[shape, WATTS] * (time_s * time_s))


@compiled
def refresh(policy: PolicyRules, jobs: JobColumns, job: int) -> None:
    """Recompute the columns of one job that depend on its remaining work.

    These columns are the value by which the job is sorted, and its best shapes. A shape is one way to run
    the job.
    """
    left = jobs.real[job, LEFT]
    lowest, shortest_s = np.inf, np.inf
    best_s, best, best_good = np.inf, np.inf, np.inf
    fastest, leanest, good = -1, -1, -1
    first, last = jobs.whole[job, FIRST], jobs.whole[job, LAST]
    for shape in range(first, last):
        time_s = jobs.load[shape, TIME_S] * left
        value = shape_value(policy.code, jobs, shape, left)
        lowest, shortest_s = min(lowest, value), min(shortest_s, time_s)
        if jobs.need[shape, POSSIBLE]:
            if time_s < best_s:
                best_s, fastest = time_s, shape
            if value < best:
                best, leanest = value, shape
    allowed = (1.0 + policy.weights[0]) * lowest
    if policy.code == KAIROS:
        for shape in range(first, last):
            value = shape_value(policy.code, jobs, shape, left)
            if jobs.need[shape, POSSIBLE] and value <= allowed and value < best_good:
                best_good, good = value, shape
    key = best_s
    if policy.code == FCFS:
        key = jobs.real[job, SUBMIT_S]
    elif policy.code == MULTIFACTOR:
        key = -jobs.real[job, SIZE]
    elif policy.code in LEAN_POLICIES:
        key = best
    elif policy.code == METIS:
        key = lowest
    jobs.real[job, KEY] = key
    jobs.real[job, ALLOWED], jobs.real[job, SHORTEST_S] = allowed, shortest_s
    jobs.whole[job, FASTEST], jobs.whole[job, LEANEST], jobs.whole[job, GOOD] = fastest, leanest, good
