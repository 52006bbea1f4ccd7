"""Policy `metis`: least energy at a bounded delay, based on a plan of the next starts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from slurm_energy.scheduling.lookahead import UnitPlan, plans
from slurm_energy.scheduling.queue import Floats, Ints, Queue, UnitCapacity
from slurm_energy.scheduling.ranking import (
    AGED,
    Options,
    Ranking,
    Term,
    edp_term,
    least,
    over_all,
    ranked,
    slack_s,
)
from slurm_energy.scheduling.registry import register

_WEIGHTS = {"thrift": 1.5, "impatience": 3.0, "delay": 0.4, "crowd": 0.5}
WAITING_JOBS = 64
"""Number of waiting jobs in a plan. Jobs after these wait until the next pass."""
_MIN_SHARE = 0.05
"""Minimum fraction of a shape's power that counts as power above idle, whatever idle power is stated."""


@register("metis", weights=_WEIGHTS, looks_ahead=True)
def rank(queue: Queue, options: Options) -> Ranking:
    """Rank the jobs, and give each job the shape with the least product of energy and delay.

    A shape is a way to run a job, with a kind and a number of units. A unit is a GPU, node or core. A job may
    wait for units that are busy now. For each shape of a job:

    - P is the power of the job, and T is its run time.
    - P_idle is the idle power of the units.
    - w is the wait until the earliest start. The earliest start follows from the expected ends of the running
      jobs and of the jobs that were placed before.

    The jobs are placed one after the other. Jobs with a deadline come first. The other jobs follow in
    ascending order of P T^2 (energy times run time), where the shape with the least P T^2 counts for each
    job.

    The shape of a job without a deadline is chosen in two steps:

    1. Shapes with a long delay w + T are excluded. Let D be the least delay w + T of all shapes of the job.
       Let p be the number of other pending jobs, divided by the number of running jobs plus 1. A shape is
       admitted if w + T <= (1 + delay / (1 + crowd p)) D.
    2. The job gets the admitted shape with the lowest ((P - P_idle) T)^thrift ((1 + impatience) w + T). The
       first factor is the energy above idle. The second factor is the delay, in which waiting counts more
       than running.

    For a job with a deadline, only the shapes that meet the deadline are compared. The job gets the one with
    the lowest ((P - P_idle) T)^thrift (w + T). If no shape meets the deadline, the job gets the shape that
    ends first.

    In two cases the policy does not plan a wait, and the job takes the best shape that may start now. In the
    first case, the units of a shape are free, but the shape cannot start now, because another resource such
    as power is lacking. In the second case, the capacity of the cluster is unknown.

    Weights: `thrift`, `impatience`, `delay`, `crowd`.
    """
    table, capacity = queue.alternatives, queue.capacity
    weights = {name: options.weight(name, default) for name, default in _WEIGHTS.items()}
    idle_watts = np.zeros(len(table.time_s))
    if capacity is not None:
        idle_watts = capacity.unit_idle_watts[table.hardware] * table.gpus
    energy = effort(table.power_watts, table.time_s, idle_watts, weights["thrift"])
    choice, _ = least(energy * table.time_s, table)
    edp = over_all(table.edp, table)
    slack = slack_s(queue, over_all(table.time_s, table))
    score = np.where(queue.jobs.urgent, slack, edp)
    terms = {
        "slack": Term(slack, "s", -1.0),
        "edp": edp_term(np.where(queue.jobs.urgent, np.nan, edp)),
    }
    ranking = ranked(queue, options, choice, score, urgent_first=True, terms=terms)
    if capacity is None:
        return ranking
    # A job whose shapes must all wait keeps its score: its place counts, although the job cannot start now.
    score = np.where(ranking.tier == AGED, queue.jobs.submit_s, score)
    placed = _Placement(queue, capacity, energy, weights).place(replace(ranking, score=score))
    return replace(ranking, score=score, choice=placed)


def effort(power_watts: Floats, time_s: Floats, idle_watts: Floats, thrift: float) -> Floats:
    """Return the effort ((P - P_idle) T)^thrift of each shape; an array of shape (m,).

    A shape is a possible set of resources of a job. P is its power and T its run time. The scheduling policy
    `metis` compares efforts.

    Args:
        power_watts: power of each shape, shape (m,).
        time_s: run time of each shape, shape (m,).
        idle_watts: idle power of the units of each shape, shape (m,).
        thrift: weight `thrift` of the policy.
    """
    own_watts = np.maximum(power_watts - idle_watts, _MIN_SHARE * power_watts)
    result: Floats = (own_watts * time_s) ** thrift
    return result


@dataclass(frozen=True, slots=True)
class _Placement:
    """State of an algorithm that places pending jobs one after another.

    A shape is a way to run a job, with a kind and number of units (GPUs, nodes or cores). There are m
    shapes.

    Attributes:
        queue: the pending jobs.
        capacity: capacity of the cluster.
        energy: energy of each shape above idle, raised to the exponent `thrift`, shape (m,).
        weights: the policy's weights by name.
    """

    queue: Queue
    capacity: UnitCapacity
    energy: Floats
    weights: dict[str, float]

    def place(self, ranking: Ranking) -> Ints:
        """Return the shape (set of resources) that each job gets in this scheduling pass, shape (n,).

        The value is the index of the shape, or -1 for a job without a shape. A job that starts now gets a
        shape. A job that must wait for units normally gets none. Such a job gets the shape with which it is
        planned to start later if the queue marks this shape as possible.

        Args:
            ranking: order of the jobs. The column `choice` has each job's best shape that may start now.
        """
        table, free = self.queue.alternatives, self.capacity.free.copy()
        unit_plans = plans(self.capacity, self.queue.now_s)
        known = free >= 0
        choice = np.full(self.queue.jobs.count, -1, np.int64)
        waiting = 0
        for row in ranking.order(self.queue.jobs.job_id).tolist():
            if waiting >= WAITING_JOBS or not (np.any(free > 0) or not np.all(known)):
                break
            best, start_s = self._shape(row, int(ranking.choice[row]), unit_plans)
            if best < 0:
                continue
            kind, gpus = int(table.hardware[best]), int(table.gpus[best])
            unit_plans[kind].take(start_s, gpus, float(table.time_s[best]))
            starts = start_s <= self.queue.now_s
            waiting += not starts
            if starts and known[kind]:
                free[kind] -= gpus
            waits_for_units = gpus > self.capacity.free[kind] or ranking.tier[row] == AGED
            if starts or (waits_for_units and table.possible[best]):
                choice[row] = best
        return choice

    def _shape(self, row: int, startable: int, unit_plans: list[UnitPlan]) -> tuple[int, float]:
        """Choose the shape of a job and its planned start.

        A shape is a way to run the job: a number of GPUs of one kind of hardware, and a run time.

        Returns:
            The row of the shape in the table of shapes, and the start in seconds. The row is -1 if the job
            fits nowhere.

        Args:
            row: row of the job in the queue.
            startable: row of the best shape of this job that may start now; -1 if no shape may start now.
            unit_plans: for each kind of hardware, the plan of when its units (e.g. GPUs) become free.
        """
        table, now_s = self.queue.alternatives, self.queue.now_s
        shapes = slice(int(table.first[row]), int(table.first[row + 1]))
        gpus, hardware, time_s = table.gpus[shapes], table.hardware[shapes], table.time_s[shapes]
        start_s = np.full(len(gpus), np.inf)
        for kind in np.unique(hardware).tolist():
            of_kind = hardware == kind
            start_s[of_kind] = unit_plans[kind].starts_s(gpus[of_kind], time_s[of_kind])
        # Units are free, but the shape may not start, for a reason that the plan does not know.
        barred = ~table.possible[shapes] & (gpus <= self.capacity.free[hardware])
        if np.any(barred):
            start_s = np.where(table.possible[shapes] & (start_s <= now_s), now_s, np.inf)
            if startable < 0 or np.all(np.isinf(start_s)):
                return -1, now_s
        wait_s = start_s - now_s
        done_s = wait_s + time_s
        cost = self.energy[shapes] * (done_s + self.weights["impatience"] * wait_s)
        cost = np.where(done_s <= self._max_delay() * np.min(done_s), cost, np.inf)
        deadline_s = float(self.queue.jobs.deadline_s[row])
        if not np.isnan(deadline_s):
            meets = now_s + done_s <= deadline_s
            cost = np.where(meets, self.energy[shapes] * done_s, np.inf) if np.any(meets) else done_s
        best = int(np.argmin(cost))
        return (shapes.start + best, float(start_s[best])) if np.isfinite(start_s[best]) else (-1, now_s)

    def _max_delay(self) -> float:
        """Return the largest allowed delay of a job's end, as a ratio of two times.

        The first time is the time from now until the end of the job. The second is the shortest time in which
        the job could end if it started now. The ratio is at least 1. It is smaller if more jobs wait.
        """
        pressure = (self.queue.jobs.count - 1) / (len(self.capacity.hardware) + 1)
        return 1.0 + self.weights["delay"] / (1.0 + self.weights["crowd"] * pressure)
