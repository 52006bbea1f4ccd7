"""Scores of the built-in scheduling policies for one job, compiled for the column engine.

Each score equals that of the policy in `slurm_energy.scheduling.rankings`; tests compare them. What does not
change while a job is pending is computed once for all jobs (`job_columns`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from slurm_energy.scheduling.queue import Bools, Floats, Ints
from slurm_energy.scheduling.ranking import Options
from slurm_energy.simulator.compiled import compiled
from slurm_energy.simulator.workload import Workload

FCFS, SJF, ZEUS, HADES, THEMIS, POLLUX, CHRONOS, KAIROS, BLEND, MULTIFACTOR, AURACHRONOS = range(11)
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
}
"""Number of each policy that the kernels know."""
LEAN_POLICIES: Final = frozenset((ZEUS, HADES, KAIROS, BLEND, AURACHRONOS))
"""Policies that choose the shape with the least energy-delay product; the others choose the fastest one."""
_URGENT_FIRST: Final = frozenset((CHRONOS, KAIROS, AURACHRONOS))
_JOULES_PER_UNIT: Final = 1000.0
_TINY: Final = float(np.finfo(np.float64).tiny)
_WEIGHTS: Final = {
    KAIROS: {"excess": 1.8, "patience": 8.0},
    BLEND: {"edp": 1.0, "fair": 0.5, "deadline": 2.0, "age": 0.5},
    MULTIFACTOR: {"age": 1000.0, "fairshare": 10_000.0, "jobsize": 1000.0},
}


class JobColumns(NamedTuple):
    """What the kernels know about n jobs with m shapes (ways to run a job).

    The jobs are in the order of `key` and job id. Rows of shapes are those of the workload.

    Attributes:
        row: row of the job in the workload, shape (n,).
        key: number below which no score of the job falls in the way that `least_score` describes, shape (n,).
        submit_s, deadline_s, limit_s, user, size, job_id: columns of the workload; `limit_s` is the time
            limit, NaN without one.
        first, last: the shapes of job i are first[i] to last[i] - 1, shape (n,).
        hardware, units, time_s, edp, possible: shapes; predicted time and energy-delay product, and whether
            the cluster has the units, shape (m,).
        fastest, leanest, good: shape with the least time, with the least energy-delay product, and with the
            least one among those that `kairos` waits for (-1: none), shape (n,).
        place: position of the job in order of submission and job id, shape (n,); `by_place` is its inverse.
        arrival: the jobs in order of their arrival, shape (n,).
        patience_s: seconds for which `kairos` lets the job wait for a good shape, shape (n,).
        allowed: energy-delay product up to which a shape is good under `kairos`, shape (n,).
        urgent: whether the job comes before others because it has a deadline, shape (n,).
    """

    row: Ints
    key: Floats
    submit_s: Floats
    deadline_s: Floats
    limit_s: Floats
    user: Ints
    size: Floats
    job_id: Ints
    first: Ints
    last: Ints
    hardware: Ints
    units: Ints
    time_s: Floats
    edp: Floats
    possible: Bools
    fastest: Ints
    leanest: Ints
    good: Ints
    place: Ints
    by_place: Ints
    arrival: Ints
    patience_s: Floats
    allowed: Floats
    urgent: Bools


class PolicyRules(NamedTuple):
    """A policy with its parameters.

    Attributes:
        code: number of the policy, as in `CODES`.
        age_weight, wait_bound_s, max_age_s: as in `Options`.
        weights: weights of the policy in the order of its documentation, shape (4,).
        urgent_first: whether jobs with a deadline come before others.
    """

    code: int
    age_weight: float
    wait_bound_s: float
    max_age_s: float
    weights: Floats
    urgent_first: bool


def rules(name: str, options: Options) -> PolicyRules:
    """Return the rules of a built-in policy with the parameters of a site."""
    code = CODES[name]
    weights = np.zeros(4)
    for index, (term, default) in enumerate(_WEIGHTS.get(code, {}).items()):
        weights[index] = options.weight(term, default)
    return PolicyRules(
        code,
        float(options.age_weight),
        float(options.wait_bound_s),
        float(options.max_age_s),
        weights,
        code in _URGENT_FIRST,
    )


def job_columns(jobs: Workload, total: Ints, policy: PolicyRules) -> JobColumns:
    """Return the columns of a workload for a policy on a cluster with `total` units by kind of nodes."""
    edp = jobs.predicted_watts * np.square(jobs.predicted_time_s)
    possible = jobs.units <= total[jobs.hardware]
    starts, counts = jobs.first[:-1], np.diff(jobs.first)
    fastest = _least(jobs.predicted_time_s, possible, jobs.first)
    leanest = _least(edp, possible, jobs.first)
    lowest_edp, shortest_s = np.zeros(0), np.zeros(0)
    if jobs.count:
        lowest_edp = np.minimum.reduceat(edp, starts)
        shortest_s = np.minimum.reduceat(jobs.predicted_time_s, starts)
    allowed = (1.0 + policy.weights[0]) * lowest_edp
    good = _least(edp, possible & (edp <= np.repeat(allowed, counts)), jobs.first)
    key = _keys(policy.code, jobs, edp, fastest, leanest)
    row: Ints = np.lexsort((jobs.job_id, key)).astype(np.int64)
    by_place: Ints = np.lexsort((jobs.job_id[row], jobs.submit_s[row])).astype(np.int64)
    deadline_s = jobs.deadline_s[row]
    return JobColumns(
        row=row,
        key=key[row],
        submit_s=jobs.submit_s[row],
        deadline_s=deadline_s,
        limit_s=jobs.time_limit_s[row],
        user=jobs.user[row],
        size=jobs.sizes(total)[row],
        job_id=jobs.job_id[row],
        first=starts[row],
        last=starts[row] + counts[row],
        hardware=_plain(jobs.hardware),
        units=_plain(jobs.units),
        time_s=_plain(jobs.predicted_time_s),
        edp=edp,
        possible=possible,
        fastest=fastest[row],
        leanest=leanest[row],
        good=good[row],
        place=_inverse(by_place),
        by_place=by_place,
        arrival=_inverse(row),
        patience_s=(policy.weights[1] * shortest_s)[row],
        allowed=allowed[row],
        urgent=~np.isnan(deadline_s) & policy.urgent_first,
    )


def _inverse(order: Ints) -> Ints:
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    return position


def _plain(column: np.ndarray) -> np.ndarray:
    """Return a column as a contiguous array: columns with one value for all rows are broadcast."""
    return np.ascontiguousarray(column)


def _keys(code: int, jobs: Workload, edp: Floats, fastest: Ints, leanest: Ints) -> Floats:
    if code == FCFS:
        return _plain(jobs.submit_s)
    values, rows = (edp, leanest) if code in LEAN_POLICIES else (jobs.predicted_time_s, fastest)
    return np.where(rows >= 0, values[rows], np.inf)


def _least(values: Floats, possible: Bools, first: Ints) -> Ints:
    """Return the possible shape with the lowest value of each job, the first of equals; -1: none."""
    if len(first) < 2:
        return np.zeros(0, np.int64)
    masked = np.where(possible, values, np.inf)
    lowest = np.minimum.reduceat(masked, first[:-1])
    hit = masked == np.repeat(lowest, np.diff(first))
    rows = np.where(hit, np.arange(len(masked)), len(masked))
    choice: Ints = np.minimum.reduceat(rows, first[:-1]).astype(np.int64)
    return np.where(np.isinf(lowest), -1, choice)


@compiled
def evaluate(
    policy: PolicyRules, jobs: JobColumns, job: int, now_s: float, usage: Floats, middle: float
) -> tuple[float, int]:
    """Return the score of a pending job and the shape that the policy chooses; -1: none now.

    Args:
        policy: the policy.
        jobs: the jobs.
        job: row of the job.
        now_s: current time in seconds.
        usage: factor of each user, as from `user_factors`, shape (u,).
        middle: median of the energy-delay products of pending jobs, for `blend`.
    """
    code = policy.code
    if code == FCFS:
        return jobs.submit_s[job], jobs.fastest[job]
    wait_s = max(0.0, now_s - jobs.submit_s[job])
    fastest, leanest = jobs.fastest[job], jobs.leanest[job]
    if code == ZEUS:
        return jobs.key[job] / (1.0 + policy.age_weight * wait_s), leanest
    if code == HADES:
        return jobs.key[job] * (usage[jobs.user[job]] + 1.0), leanest
    if code == SJF:
        return jobs.key[job], fastest
    if code == THEMIS:
        return jobs.key[job] * (usage[jobs.user[job]] + 1.0), fastest
    if code == POLLUX:
        return jobs.key[job] - policy.age_weight * wait_s, fastest
    if code == BLEND:
        return _blend(policy, jobs, job, now_s, wait_s, usage, middle)
    if code == MULTIFACTOR:
        weights = policy.weights
        score = weights[0] * min(1.0, wait_s / policy.max_age_s)
        score += weights[1] * usage[jobs.user[job]]
        return -(score + weights[2] * jobs.size[job]), fastest
    urgent = not np.isnan(jobs.deadline_s[job])
    if code == CHRONOS:
        slack_s = jobs.deadline_s[job] - (now_s + jobs.key[job])
        return (slack_s if urgent else jobs.key[job] - policy.age_weight * wait_s), fastest
    if code == AURACHRONOS and not urgent:
        return jobs.key[job] / (1.0 + policy.age_weight * wait_s), leanest
    if urgent:
        return _in_time(policy, jobs, job, now_s)
    choice = jobs.good[job]
    if choice < 0 and wait_s >= jobs.patience_s[job]:
        choice = leanest
    return (jobs.edp[choice] if choice >= 0 else np.inf), choice


@compiled
def least_score(policy: PolicyRules, key: float, longest_wait_s: float, least_usage: float) -> float:
    """Return a number that no score of a job with this key, or with a higher one, falls below.

    Args:
        policy: the policy.
        key: the job's key.
        longest_wait_s: longest wait of a pending job in seconds.
        least_usage: lowest factor of a user.
    """
    code = policy.code
    if code in (ZEUS, AURACHRONOS):
        return key / (1.0 + policy.age_weight * longest_wait_s)
    if code in (HADES, THEMIS):
        return key * (least_usage + 1.0)
    if code in (POLLUX, CHRONOS):
        return key - policy.age_weight * longest_wait_s
    if code in (BLEND, MULTIFACTOR):
        return -np.inf
    return key


@compiled
def _blend(
    policy: PolicyRules, jobs: JobColumns, job: int, now_s: float, wait_s: float, usage: Floats, middle: float
) -> tuple[float, int]:
    fastest, leanest, edp = jobs.fastest[job], jobs.leanest[job], jobs.key[job]
    shortest_s = jobs.time_s[fastest]
    slack_s = jobs.deadline_s[job] - (now_s + shortest_s)
    middle = max(middle, _TINY)
    late = 0.0 if np.isnan(slack_s) else shortest_s / (shortest_s + max(0.0, slack_s))
    weights = policy.weights
    score = weights[0] * (middle / (middle + edp)) + weights[1] * usage[jobs.user[job]]
    score += weights[2] * late
    score += weights[3] * min(1.0, wait_s / policy.wait_bound_s)
    return -score, (fastest if slack_s < shortest_s else leanest)


@compiled
def _in_time(policy: PolicyRules, jobs: JobColumns, job: int, now_s: float) -> tuple[float, int]:
    """Return the score and the shape of a job with a deadline under `kairos` or `aurachronos`.

    Only shapes in which the job meets its deadline count, unless there is none.
    """
    first, last = jobs.first[job], jobs.last[job]
    left_s = jobs.deadline_s[job] - now_s
    every = True
    for shape in range(first, last):
        if jobs.time_s[shape] <= left_s:
            every = False
    fastest, leanest, good = -1, -1, -1
    for shape in range(first, last):
        if not jobs.possible[shape] or not (every or jobs.time_s[shape] <= left_s):
            continue
        if fastest < 0 or jobs.time_s[shape] < jobs.time_s[fastest]:
            fastest = shape
        if leanest < 0 or jobs.edp[shape] < jobs.edp[leanest]:
            leanest = shape
        if jobs.edp[shape] <= jobs.allowed[job] and (good < 0 or jobs.edp[shape] < jobs.edp[good]):
            good = shape
    if policy.code == AURACHRONOS:
        slack_s = jobs.deadline_s[job] - (now_s + jobs.time_s[fastest]) if fastest >= 0 else np.inf
        return slack_s, fastest
    choice = leanest if good < 0 else good
    return (jobs.edp[choice] if choice >= 0 else np.inf), choice


@compiled
def user_factors(
    policy: PolicyRules, unit_s: Floats, joules: Floats, share: Floats, factors: Floats
) -> float:
    """Compute the factor of each user from the user's usage, and return the lowest.

    Args:
        policy: the policy.
        unit_s: usage of units by each user, shape (u,).
        joules: usage of energy by each user, shape (u,).
        share: share of each user relative to the mean (`hades`, `themis`) or to the sum, shape (u,).
        factors: receives the factors, shape (u,).
    """
    code = policy.code
    if code in (HADES, THEMIS):
        for user in range(len(share)):
            used = joules[user] / _JOULES_PER_UNIT if code == HADES else unit_s[user]
            factors[user] = used / share[user]
        return np.min(factors)
    usage = joules if code == BLEND else unit_s
    total = np.sum(usage)
    for user in range(len(share)):
        factors[user] = 1.0 if total <= 0 else 2.0 ** (-(usage[user] / total) / share[user])
    return 0.0
