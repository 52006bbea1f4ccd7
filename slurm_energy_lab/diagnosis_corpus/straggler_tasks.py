"""Synthetic tasks for tests of the rule that finds stragglers (slow tasks of a job).

Each task is labelled as straggler or not. The numbers of tasks and of stragglers are those of the data set
of Ravikumar and Sriraman.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from slurm_energy.diagnosis.stragglers import stragglers

TASKS: Final = 21_000
STRAGGLERS: Final = 724
TASKS_PER_JOB: Final = 140


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """The tasks of one job.

    Attributes:
        durations_s: duration of each task.
        slow: indices of the tasks that ran on a slow node.
    """

    durations_s: tuple[float, ...]
    slow: frozenset[int]


@dataclass(frozen=True, slots=True)
class Score:
    """Precision and recall of the rule that finds stragglers (slow tasks), at one threshold."""

    threshold: float
    precision: float
    recall: float

    @property
    def f1(self) -> float:
        """Return the harmonic mean of precision and recall."""
        total = self.precision + self.recall
        return 2 * self.precision * self.recall / total if total else 0.0


def task_groups(seed: int) -> list[TaskGroup]:
    """Return 150 jobs with 21,000 tasks in total. 724 of the tasks ran on slow nodes.

    The times of a job's tasks have a lognormal distribution with a deviation of 3 to 18 % of their mean. Of
    all tasks, 2 % have up to 50 % more work. A task on a slow node takes 1.3 to 5 times as long; most take
    less than twice as long.
    """
    random = Random(seed)
    slow = set(random.sample(range(TASKS), STRAGGLERS))
    groups = []
    for first in range(0, TASKS, TASKS_PER_JOB):
        mean_s, spread = 10 ** random.uniform(0, 3), random.uniform(0.03, 0.18)
        durations = []
        for task in range(first, first + TASKS_PER_JOB):
            work = random.uniform(1.0, 1.5) if random.random() < 0.02 else 1.0
            slowness = 1.3 + min(3.7, random.expovariate(1 / 0.6)) if task in slow else 1.0
            durations.append(mean_s * random.lognormvariate(0, spread) * work * slowness)
        members = frozenset(task - first for task in slow if first <= task < first + TASKS_PER_JOB)
        groups.append(TaskGroup(tuple(durations), members))
    return groups


def score(groups: list[TaskGroup], threshold: float) -> Score:
    """Measure how well the rule for stragglers (slow tasks) works with a given threshold.

    The result contains precision and recall. They are computed over all groups of tasks, in which it is
    known which tasks are slow.
    """
    hits = named = 0
    for group in groups:
        found = stragglers(group.durations_s, threshold)
        named += len(found)
        hits += len(group.slow.intersection(found))
    labelled = sum(len(group.slow) for group in groups)
    return Score(threshold, hits / named if named else 0.0, hits / labelled)
