"""Ranking of the pending jobs: the result of a scheduling policy.

A ranking states the order of the jobs. A job may have several possible resource shapes (for example
kind and number of GPUs). The ranking also states which of its shapes each job uses. The module also
contains the functions from which scheduling policies build a ranking.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from slurm_energy.scheduling.queue import Alternatives, Bools, Floats, Ints, Queue

AGED, URGENT, NORMAL = 0, 1, 2
"""Tiers, the lowest first: jobs that waited past the bound, jobs with a deadline, all others."""


@dataclass(frozen=True, slots=True)
class Options:
    """Parameters that a site sets for all scheduling policies.

    Attributes:
        age_weight: weight of a job's waiting time, per second (W_age in the thesis, 5.4).
        wait_bound_s: bound on waiting in seconds. Jobs that waited longer go before all others in order of
            submission, and no job may delay them. No wait exceeds this bound plus the time until the running
            jobs and the jobs that have waited even longer are finished.
        weights: weights of the terms of `blend` and of Slurm's factors in `multifactor`, by name.
        max_age_s: waiting time in seconds at which the age factor reaches 1 (Slurm's PriorityMaxAge).
        aged_jobs_per_user: maximum number of jobs of one owner that go before all others within a period of
            `wait_bound_s`, including jobs that have started. None means no limit.
    """

    age_weight: float = 0.01
    wait_bound_s: float = 86_400.0
    weights: dict[str, float] = field(default_factory=dict)
    max_age_s: float = 7 * 86_400.0
    aged_jobs_per_user: int | None = None

    def weight(self, name: str, default: float) -> float:
        """Return the weight that the configuration sets for the term `name` of a scheduling policy.

        Return `default` if the configuration sets no weight for this term.
        """
        return self.weights.get(name, default)


@dataclass(frozen=True, slots=True)
class Term:
    """Component of the score by which a scheduling policy orders the jobs.

    Terms only explain the scores to users. They have no effect on decisions.

    Attributes:
        value: value for each of n jobs, shape (n,). NaN means that the term does not apply to the job.
        unit: unit of the value; empty for a factor.
        weight: factor by which the value is multiplied if the score is a sum; None for other scores.
        power: exponent of the value if the score is a product; None for other scores.
    """

    value: Floats
    unit: str = ""
    weight: float | None = None
    power: float | None = None

    @property
    def contribution(self) -> Floats | None:
        """The term's part of each job's score, shape (n,). A lower score is better.

        The value is None if the term has no weight.
        """
        return None if self.weight is None else self.weight * self.value


@dataclass(frozen=True, slots=True)
class Ranking:
    """Result of a scheduling policy for n jobs; columns have shape (n,).

    Attributes:
        tier: number of the job's tier. The tiers are aged, urgent and normal (see `tiers`). Jobs of a
            lower tier start first.
        score: order of the jobs within a tier. Jobs with a lower score go first. +inf means that the job
            cannot run now.
        choice: row of the alternative (way to run the job) that was chosen; -1 if no alternative is
            possible now.
        terms: components of the score, by name. They explain the score to users. Terms with a weight are
            parts of a sum: the score is minus the sum of their contributions. Terms with a power are
            factors of a product: the score is the product. Terms without weight and power are shown for
            comparison only. No term shows that an aged job was put first.
    """

    tier: Ints
    score: Floats
    choice: Ints
    terms: Mapping[str, Term] = field(default_factory=dict)

    def order(self, job_id: Ints) -> Ints:
        """Return the rows of the jobs in the order in which the jobs start, shape (n,).

        Jobs are ordered by tier (aged, urgent, normal), then by score, then by job id.

        Args:
            job_id: job ids, shape (n,). Among jobs with the same tier and score, the lower id comes first.
        """
        rows: Ints = np.lexsort((job_id, self.score, self.tier)).astype(np.int64)
        return rows


def fault(ranking: Ranking, queue: Queue) -> str:
    """Return in one line why the result of a scheduling policy is invalid for a queue.

    The result is an empty string if the ranking is valid.
    """
    if not isinstance(ranking, Ranking):
        return f"it returned {type(ranking).__name__}, not a Ranking"
    count, first = queue.jobs.count, queue.alternatives.first
    tier, choice = np.asarray(ranking.tier), np.asarray(ranking.choice)
    values = {name: term.value for name, term in ranking.terms.items()}
    columns = {"tier": tier, "score": ranking.score, "choice": choice, **values}
    wrong = next((name for name, column in columns.items() if np.shape(column) != (count,)), None)
    if wrong is not None:
        return f"{wrong} has not one value for each of {count} jobs"
    kinds = {"tier": (tier, "iu"), "choice": (choice, "iu"), "score": (np.asarray(ranking.score), "iuf")}
    for name, (column, kind) in kinds.items():
        if column.dtype.kind not in kind and count:
            numbers = "numbers" if "f" in kind else "whole numbers"
            return f"{name} has the type {column.dtype}, but must have {numbers}"
    if np.any((tier < AGED) | (tier > NORMAL)):
        return f"a tier is not from {AGED} to {NORMAL}"
    if np.any((choice >= 0) & ((choice < first[:-1]) | (choice >= first[1:]))):
        return "it chose a shape of another job, or one that does not exist"
    taken = choice[choice >= 0]
    if not np.all(queue.alternatives.possible[taken]):
        job = queue.jobs.job_id[choice >= 0][np.flatnonzero(~queue.alternatives.possible[taken])[0]]
        return f"it chose a shape of job {job} that is not possible now"
    if np.any(np.isneginf(np.asarray(ranking.score, np.float64))):
        job = queue.jobs.job_id[np.argmin(ranking.score)]
        return f"the score of job {job} is minus infinity"
    unordered = np.flatnonzero(np.isnan(np.asarray(ranking.score, np.float64)))
    if len(unordered):
        job = queue.jobs.job_id[unordered[0]]
        return f"the score of job {job} is not a number (NaN), as are {len(unordered) - 1} others"
    return ""


def least(values: Floats, table: Alternatives) -> tuple[Ints, Floats]:
    """Return, for each of n jobs, which of its possible alternatives has the lowest value.

    Args:
        values: value of each alternative, shape (m,).
        table: alternatives (ways to run a job) of all jobs.

    Returns:
        Row of this alternative and its value, each of shape (n,). Of equal values the first row is returned.
        Without a possible alternative the row is -1 and the value +inf.
    """
    if len(table.first) < 2:
        return np.zeros(0, np.int64), np.zeros(0)
    masked = np.where(table.possible, values, np.inf)
    starts = table.first[:-1]
    lowest: Floats = np.minimum.reduceat(masked, starts)
    counts = np.diff(table.first)
    hit = masked == np.repeat(lowest, counts)
    rows = np.where(hit, np.arange(len(masked)), len(masked))
    choice: Ints = np.minimum.reduceat(rows, starts).astype(np.int64)
    return np.where(np.isinf(lowest), -1, choice), lowest


def tiers(queue: Queue, options: Options, *, urgent_first: bool = False) -> Ints:
    """Return the tier of each job, shape (n,): AGED, URGENT or NORMAL.

    Jobs of the tier AGED have waited longer than the bound on waiting. Each owner has at most
    `options.aged_jobs_per_user` jobs in this tier, which are the owner's oldest jobs. Jobs of the tier URGENT
    have a deadline. This tier is empty unless `urgent_first` is set. All other jobs are NORMAL.
    """
    tier = np.full(queue.jobs.count, NORMAL, np.int64)
    if urgent_first:
        tier[queue.jobs.urgent] = URGENT
    tier[_aged(queue, options)] = AGED
    return tier


def _aged(queue: Queue, options: Options) -> Ints:
    """Return the jobs of the tier AGED, which is ranked before all other tiers.

    The result contains the rows of these jobs in the table of the queue. A job belongs to the tier if it
    has waited at least as long as the configured bound on waiting. The number of such jobs per owner may
    be limited. In this case, the jobs that were submitted first are taken.
    """
    jobs = queue.jobs
    rows: Ints = np.flatnonzero(queue.wait_s >= options.wait_bound_s)
    if options.aged_jobs_per_user is None or len(rows) == 0:
        return rows
    rows = rows[np.lexsort((jobs.job_id[rows], jobs.submit_s[rows], jobs.owner[rows]))]
    owner = jobs.owner[rows]
    first = np.flatnonzero(np.concatenate([[True], owner[1:] != owner[:-1]]))
    number = np.arange(len(rows)) - np.repeat(first, np.diff(np.append(first, len(rows))))
    allowed: Ints = rows[number < options.aged_jobs_per_user - jobs.aged_starts[rows]]
    return allowed


def ranked(
    queue: Queue,
    options: Options,
    choice: Ints,
    score: Floats,
    *,
    urgent_first: bool = False,
    terms: Mapping[str, Term] | None = None,
) -> Ranking:
    """Return a ranking of n jobs by their scores.

    Jobs that have waited longer than the bound on waiting come first, in order of submission.

    Args:
        queue: the pending jobs.
        options: parameters of the site.
        choice: row of the chosen alternative (shape) of each job, shape (n,); -1 if no alternative was
            chosen. A job without an alternative gets the score +inf.
        score: score of each job, lower first, shape (n,).
        urgent_first: whether jobs with a deadline come before the jobs without one.
        terms: components of the score by name, for explanations; None if the score has no components.
    """
    tier = tiers(queue, options, urgent_first=urgent_first)
    aged = tier == AGED
    final = np.where(aged, queue.jobs.submit_s, score)
    final = np.where(choice < 0, np.inf, final)
    return Ranking(tier, final, choice, terms or {})


def edp_term(edp: Floats) -> Term:
    """Return a term for the explanation of a ranking: the energy-delay product of each job.

    Args:
        edp: energy-delay products in joule seconds, shape (n,).
    """
    return Term(edp, "J s", power=1.0)


def minus_sum(terms: Mapping[str, Term]) -> Floats:
    """Return the negative sum of the terms' contributions as the score of each job, shape (n,)."""
    score: Floats = -np.sum([c for term in terms.values() if (c := term.contribution) is not None], axis=0)
    return score


def chosen(values: Floats, choice: Ints) -> Floats:
    """Return one value per job: the value of the alternative that was chosen for the job.

    An alternative is a set of resources on which a job can run. The result has shape (n,). It is +inf for a
    job without a chosen alternative.

    Args:
        values: value of each alternative, shape (m,).
        choice: index of each job's chosen alternative, shape (n,); -1 if no alternative was chosen.
    """
    picked: Floats = np.where(choice >= 0, values[choice], np.inf) if len(values) else np.zeros(0)
    return picked


def slack_s(queue: Queue, time_s: Floats) -> Floats:
    """Return the slack of each job in seconds: deadline - (now + time_s); NaN without deadline.

    Args:
        queue: the pending jobs.
        time_s: run time of each job in seconds, shape (n,).

    Source: thesis, 5.4.1, Chronos.
    """
    slack: Floats = queue.jobs.deadline_s - (queue.now_s + time_s)
    return slack


def over_all(values: Floats, table: Alternatives) -> Floats:
    """Return the lowest value of each job over all its alternatives (ways to run the job).

    Alternatives that are impossible at present are included.

    Args:
        values: value of each alternative, shape (m,).
        table: the alternatives of n jobs.

    Returns:
        Shape (n,).
    """
    if len(table.first) < 2:
        return np.zeros(0)
    lowest: Floats = np.minimum.reduceat(values, table.first[:-1])
    return lowest


def in_time(queue: Queue) -> Bools:
    """Return which alternatives (ways to run a job) meet the deadline of the job, shape (m,).

    An alternative meets the deadline if the job would end in time when started now. If a job has no
    deadline, all its alternatives are True. If a job would miss its deadline in every alternative, all its
    alternatives are True as well.
    """
    table = queue.alternatives
    counts = np.diff(table.first)
    left_s = queue.jobs.deadline_s - queue.now_s
    open_end = np.isnan(left_s) | (over_all(table.time_s, table) > left_s)
    meets: Bools = np.repeat(open_end, counts) | (table.time_s <= np.repeat(left_s, counts))
    return meets
