"""Scores of the built-in scheduling policies for one job, as compiled functions.

They are used by the simulator's compiled engine. Each score equals the score of the same policy in
`slurm_energy.scheduling.rankings`; tests compare both.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from slurm_energy.scheduling.queue import Floats, Ints
from slurm_energy.simulator.kernels.compiled import compiled
from slurm_energy.simulator.workloads.job_columns import (
    ALLOWED,
    AURACHRONOS,
    BLEND,
    CHRONOS,
    DEADLINE_S,
    FASTEST,
    FCFS,
    FIRST,
    GOOD,
    HADES,
    KAIROS,
    KEY,
    KILL_S,
    KIND,
    LAST,
    LEAN_POLICIES,
    LEANEST,
    LEFT,
    LIMIT_S,
    MULTIFACTOR,
    PACKING,
    PLACE,
    POLLUX,
    POSSIBLE,
    RESTART_S,
    SHORTEST_S,
    SUBMIT_S,
    THEMIS,
    TIME_S,
    UNITS,
    URGENT,
    USER,
    WATTS,
    ZEUS,
    JobColumns,
    PolicyRules,
    shape_value,
)

_JOULES_PER_UNIT: Final = 1000.0
_TINY: Final = float(np.finfo(np.float64).tiny)
_ROUNDING: Final = 1e-15
NEVER: Final = 9.0
"""Tier of a job without a shape in which it can run now."""


class Moment(NamedTuple):
    """Quantities at a moment of the simulation on which scores depend, besides the job itself.

    Attributes:
        now_s: current time in seconds.
        usage: usage factor of each user, computed by `user_factors`, shape (u,).
        best_usage: the usage factor that makes scores lowest.
        middle: median of the energy-delay products of the pending jobs, for the policy `blend`.
        free: free units (GPUs, nodes or cores) by kind of nodes at the start of the scheduling pass. When
            the discipline packing chooses shapes, the shapes must fit in these units.
    """

    now_s: float
    usage: Floats
    best_usage: float
    middle: float
    free: Ints


@compiled
def rank(policy: PolicyRules, jobs: JobColumns, job: int, now: Moment) -> tuple[float, float, int]:
    """Return the tier, the score and the chosen shape of a pending job.

    A shape is a way to run the job, with a number and kind of GPUs. A tier is a class of jobs: aged,
    urgent or normal. Jobs are ordered by tier, then by score; lower values come first. The tier is
    `NEVER` if no shape can be chosen now.
    """
    wait_s = max(0.0, now.now_s - jobs.real[job, SUBMIT_S])
    aged = wait_s >= policy.wait_bound_s
    if policy.discipline == PACKING and not aged:
        score, shape = _packing_score(policy, jobs, job, now, wait_s)
    else:
        score, shape = _score(policy, jobs, job, now, wait_s)
    if shape < 0:
        return NEVER, np.inf, -1
    if aged:
        return 0.0, float(jobs.whole[job, PLACE]), shape
    return (1.0 if policy.urgent_first and jobs.whole[job, URGENT] else 2.0), score, shape


@compiled
def _score(policy: PolicyRules, jobs: JobColumns, job: int, now: Moment, wait_s: float) -> tuple[float, int]:
    """Return the score of a job, and the shape (way to run the job) that the policy chooses.

    The shape is -1 if no shape is possible.
    """
    code = policy.code
    fastest, leanest = jobs.whole[job, FASTEST], jobs.whole[job, LEANEST]
    urgent = jobs.whole[job, URGENT] == 1
    if urgent and code in (KAIROS, AURACHRONOS):
        return _in_time(policy, jobs, job, now, False)
    if urgent and code == BLEND:
        shortest_s = jobs.load[fastest, TIME_S] * jobs.real[job, LEFT] if fastest >= 0 else np.inf
        return _blend(policy, jobs, job, now, wait_s, jobs.real[job, KEY], shortest_s, fastest, leanest)
    if code == KAIROS:
        choice = jobs.whole[job, GOOD]
        if choice < 0 and wait_s >= policy.weights[1] * jobs.real[job, SHORTEST_S]:
            choice = leanest
        return jobs.real[job, KEY], choice
    choice = leanest if code in LEAN_POLICIES else fastest
    return _plain_score(policy, jobs, job, now, wait_s, jobs.real[job, KEY]), choice


@compiled
def _plain_score(
    policy: PolicyRules, jobs: JobColumns, job: int, now: Moment, wait_s: float, value: float
) -> float:
    """Return the score of a job whose lowest time or energy-delay product is `value`.

    The function is used for all jobs without a deadline. It is also used for jobs with a deadline, except
    under the policies `blend`, `kairos` and `aurachronos`.
    """
    code = policy.code
    if code == CHRONOS and jobs.whole[job, URGENT]:
        return float(jobs.real[job, DEADLINE_S] - (now.now_s + value))
    if code in (FCFS, MULTIFACTOR):
        value = jobs.real[job, KEY]
    usage = now.usage[jobs.whole[job, USER]] if len(now.usage) > 0 else 0.0
    return lowest_score(policy, now, value, wait_s, usage, False)


@compiled
def lowest_score(
    policy: PolicyRules, now: Moment, value: float, wait_s: float, usage: float, urgent: bool
) -> float:
    """Return the score of one job without a deadline, or a lower bound of the scores of many jobs.

    For many jobs, the arguments are the extreme values over these jobs. Each step of the computation is
    monotonic. Therefore the result is never above the score of any of these jobs, even with rounding.

    Args:
        policy: parameters of the scheduling policy.
        now: quantities on which the score depends but which are equal for all jobs, see `Moment`.
        value: value by which the policy sorts jobs (KEY), or the lowest value of the jobs.
        wait_s: seconds for which the job has waited, or the longest wait of the jobs.
        usage: usage factor of the job's user, or the usage factor that makes scores lowest.
        urgent: whether any of the jobs may have a deadline. Only the policy `blend` uses this argument.
    """
    code = policy.code
    if code in (ZEUS, AURACHRONOS):
        return value / (1.0 + policy.age_weight * wait_s)
    if code in (HADES, THEMIS):
        return value * (usage + 1.0)
    if code in (POLLUX, CHRONOS):
        return value - policy.age_weight * wait_s
    if code == BLEND:
        return _blend_score(policy, now, value, wait_s, usage, 1.0 if urgent else 0.0)
    if code == MULTIFACTOR:
        weights = policy.weights
        score = weights[0] * min(1.0, wait_s / policy.max_age_s)
        score += weights[1] * usage
        return float(-(score + weights[2] * -value))
    return value  # fcfs, sjf, kairos, lean


@compiled
def lowest_slack_s(latest_s: float, now_s: float) -> float:
    """Return a lower bound of the slack of several jobs, for use as a quick test.

    The slack is the time from now to the latest start that a job's deadline permits. The bound allows for
    rounding errors.

    Args:
        latest_s: earliest of the latest starts of the jobs (column LATEST_S).
        now_s: current time.
    """
    return latest_s - now_s - _ROUNDING * (abs(latest_s) + now_s)


@compiled
def _blend_score(
    policy: PolicyRules, now: Moment, edp: float, wait_s: float, usage: float, late: float
) -> float:
    weights, middle = policy.weights, max(now.middle, _TINY)
    score = weights[0] * (middle / (middle + edp)) + weights[1] * usage
    score += weights[2] * late
    score += weights[3] * min(1.0, wait_s / policy.wait_bound_s)
    return float(-score)


@compiled
def _blend(
    policy: PolicyRules,
    jobs: JobColumns,
    job: int,
    now: Moment,
    wait_s: float,
    edp: float,
    shortest_s: float,
    fastest: int,
    leanest: int,
) -> tuple[float, int]:
    slack_s = jobs.real[job, DEADLINE_S] - (now.now_s + shortest_s)
    late = 0.0 if np.isnan(slack_s) else shortest_s / (shortest_s + max(0.0, slack_s))
    score = _blend_score(policy, now, edp, wait_s, now.usage[jobs.whole[job, USER]], late)
    return score, (fastest if slack_s < shortest_s else leanest)


@compiled
def _packing_score(
    policy: PolicyRules, jobs: JobColumns, job: int, now: Moment, wait_s: float
) -> tuple[float, int]:
    """Return the score of a job, and the index of the shape in which the policy would start the job.

    A shape is one way to run the job, with a kind and number of units (GPUs, cores or nodes). Only shapes
    for which enough units are free are considered. The index is -1 if no shape fits now.
    """
    code = policy.code
    if code == KAIROS or (code == AURACHRONOS and jobs.whole[job, URGENT]):
        return _in_time(policy, jobs, job, now, True)
    left = jobs.real[job, LEFT]
    best_s, best, fastest, leanest = np.inf, np.inf, -1, -1
    for shape in range(jobs.whole[job, FIRST], jobs.whole[job, LAST]):
        if jobs.need[shape, UNITS] <= now.free[jobs.need[shape, KIND]]:
            time_s, value = jobs.load[shape, TIME_S] * left, shape_value(code, jobs, shape, left)
            if time_s < best_s:
                best_s, fastest = time_s, shape
            if value < best:
                best, leanest = value, shape
    if fastest < 0:
        return np.inf, -1
    if code == BLEND:
        return _blend(policy, jobs, job, now, wait_s, best, best_s, fastest, leanest)
    if code in LEAN_POLICIES:
        return _plain_score(policy, jobs, job, now, wait_s, best), leanest
    return _plain_score(policy, jobs, job, now, wait_s, best_s), fastest


@compiled
def least_edp(jobs: JobColumns, job: int, free: Ints) -> float:
    """Return the lowest energy-delay product with which a job can start on the free GPUs or nodes.

    The minimum is over the job's shapes: the numbers and kinds of GPUs with which it can run.
    """
    least = np.inf
    for shape in range(jobs.whole[job, FIRST], jobs.whole[job, LAST]):
        if jobs.need[shape, UNITS] <= free[jobs.need[shape, KIND]]:
            time_s = jobs.load[shape, TIME_S] * jobs.real[job, LEFT]
            least = min(least, jobs.load[shape, WATTS] * (time_s * time_s))
    return least


@compiled
def _in_time(
    policy: PolicyRules, jobs: JobColumns, job: int, now: Moment, packing: bool
) -> tuple[float, int]:
    """Return the score of a job and the shape that gives this score.

    A shape is a possible way to run the job. The scheduling policy `aurachronos` uses this function only
    for jobs with a deadline. The scheduling policy `kairos` uses it for all jobs.

    Shapes in which the job would miss its deadline are skipped. If the job would miss its deadline in
    every shape, no shape is skipped.
    """
    first, last, left = jobs.whole[job, FIRST], jobs.whole[job, LAST], jobs.real[job, LEFT]
    left_s = jobs.real[job, DEADLINE_S] - now.now_s
    every = True
    for shape in range(first, last):
        if jobs.load[shape, TIME_S] * left <= left_s:
            every = False
    best_s, best_edp, good_edp = np.inf, np.inf, np.inf
    fastest, leanest, good = -1, -1, -1
    for shape in range(first, last):
        time_s = jobs.load[shape, TIME_S] * left
        if not jobs.need[shape, POSSIBLE] or not (every or time_s <= left_s):
            continue
        if packing and jobs.need[shape, UNITS] > now.free[jobs.need[shape, KIND]]:
            continue
        edp = jobs.load[shape, WATTS] * (time_s * time_s)
        if time_s < best_s:
            best_s, fastest = time_s, shape
        if edp < best_edp:
            best_edp, leanest = edp, shape
        if edp <= jobs.real[job, ALLOWED] and edp < good_edp:
            good_edp, good = edp, shape
    if policy.code == AURACHRONOS:
        return left_s_after(jobs, job, now, best_s), fastest
    if good >= 0:
        return good_edp, good
    waits = (
        not jobs.whole[job, URGENT]
        and max(0.0, now.now_s - jobs.real[job, SUBMIT_S]) < policy.weights[1] * jobs.real[job, SHORTEST_S]
    )
    return (np.inf, -1) if waits else (best_edp, leanest)


@compiled
def left_s_after(jobs: JobColumns, job: int, now: Moment, time_s: float) -> float:
    """Return the seconds that remain until a job's deadline if the job starts now.

    `time_s` is the run time of the job in seconds.
    """
    return float(jobs.real[job, DEADLINE_S] - (now.now_s + time_s))


@compiled
def expected_s(jobs: JobColumns, job: int, shape: int) -> float:
    """Return the expected remaining run time of a job in seconds.

    The value is based on the time limit, or on the predicted time if the job has no time limit. After an
    interruption, only the rest of this time is expected. A job that is killed at its time limit gets the
    whole limit again after an interruption, as in Slurm.
    """
    if jobs.real[job, KILL_S] < np.inf:
        return float(jobs.real[job, KILL_S])
    limit_s = jobs.real[job, LIMIT_S]
    whole_s = jobs.load[shape, TIME_S] if np.isnan(limit_s) else limit_s
    return float(jobs.real[job, RESTART_S] + jobs.real[job, LEFT] * whole_s)


@compiled
def user_factors(
    policy: PolicyRules, unit_s: Floats, joules: Floats, share: Floats, factors: Floats
) -> float:
    """Compute from each user's past usage a factor for the scores of the user's jobs.

    Jobs with a lower score start earlier. Users with much past usage get a factor that makes the scores
    of their jobs worse. The factors are stored in `factors`. The function returns the factor of the user
    whose jobs get the best scores.

    Args:
        policy: parameters of the scheduling policy.
        unit_s: past use of units (such as GPUs) by each user in unit seconds, with older use counting
            less, shape (u,).
        joules: past energy use of each user, with older use counting less, shape (u,).
        share: fair share of each user, shape (u,). For `hades` and `themis` the share is divided by the
            mean share, for other policies by the sum of shares.
        factors: array to which the usage factors are written, shape (u,).
    """
    code = policy.code
    if code in (HADES, THEMIS):
        least = np.inf
        for user in range(len(share)):
            used = joules[user] / _JOULES_PER_UNIT if code == HADES else unit_s[user]
            factors[user] = used / share[user]
            least = min(least, factors[user])
        return float(least)
    usage = joules if code == BLEND else unit_s
    total, most = 0.0, 0.0
    for user in range(len(share)):
        total += usage[user]
    for user in range(len(share)):
        factors[user] = 1.0 if total <= 0 else 2.0 ** (-(usage[user] / total) / share[user])
        most = max(most, factors[user])
    return most
