"""Choice of the number of tasks into which a batch is split.

A task must last at least 20 times as long as StarPU needs to submit, schedule and finish it. Overhead is then
at most 5 % of the processor time. Each split that satisfies this condition is measured on batches of the
training itself. The fastest split is kept, or a split within 5 % of the fastest that needs less processor
time. Source: DAHL, section 5.3, which names fixed task sizes as a weakness for small images.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MIN_TASK_TO_OVERHEAD = 20.0
_TOLERANCE = 1.05
_TRIAL_S = 0.01
_MAX_TRIAL_BATCHES = 8
_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class BatchSplit:
    """Division of a batch of training samples into tasks.

    Attributes:
        chunks: number of chunks into which the samples are divided.
        groups: number of feature groups into which each stage of a chunk is divided.
    """

    chunks: int
    groups: int = 1


@dataclass(slots=True)
class _Trial:
    split: BatchSplit
    wall_s: float = float("inf")
    cpu_s: float = float("inf")
    rounds: int = 0


def candidate_splits(workers: int, batch_size: int) -> list[BatchSplit]:
    """Return the ways to split a batch into tasks for the workers, the coarsest first.

    A split divides the samples of the batch into chunks. Only if the batch has fewer samples than there are
    workers, a split also divides the features of a chunk into groups.
    """
    chunks = {min(batch_size, n) for n in (1, workers, 2 * workers, 4 * workers)}
    splits = [BatchSplit(n) for n in sorted(chunks)]
    if batch_size < workers:
        splits.append(BatchSplit(batch_size, -(-workers // batch_size)))
    return splits


@dataclass(slots=True)
class GranularityTuner:
    """Choice of the split of a training batch into tasks.

    Several splits are measured on the first batches.

    Args:
        workers: number of StarPU workers.
        batch_size: samples per batch.
        overhead_s: processor seconds that StarPU needs for one task.
    """

    workers: int
    batch_size: int
    overhead_s: float
    _trials: list[_Trial] = field(default_factory=list)
    _position: int = 0
    _batches: int = 1
    choice: BatchSplit | None = None

    def __post_init__(self) -> None:
        self._trials = [_Trial(split) for split in candidate_splits(self.workers, self.batch_size)]
        if len(self._trials) == 1:
            self.choice = self._trials[0].split

    def next_trial(self) -> tuple[BatchSplit, int]:
        """Return the next split of a batch into tasks, and the number of batches to measure with it."""
        return self._trials[self._position].split, self._batches

    def record(self, wall_s: float, cpu_s: float, task_s: float, tasks: int, batches: int) -> None:
        """Add a measurement of the way to split a batch into tasks that `next_trial` has returned.

        Args:
            wall_s: elapsed seconds of the measured batches.
            cpu_s: processor seconds of the process.
            task_s: processor seconds that were spent inside tasks.
            tasks: number of executed tasks.
            batches: number of measured batches.
        """
        trial = self._trials[self._position]
        if self._batches == 1 and self._position == 0 and trial.rounds == 0:
            # The first batch only says how long a batch lasts: it also touches all memory for the first time.
            trial.rounds = -1
            self._batches = max(2, min(_MAX_TRIAL_BATCHES, int(_TRIAL_S * batches / max(wall_s, 1e-9))))
            self._trials = [
                item for item in self._trials if self._is_coarse_enough(item.split, task_s / batches)
            ]
            return
        trial.rounds = max(trial.rounds, 0) + 1
        trial.wall_s = min(trial.wall_s, wall_s / batches)
        trial.cpu_s = min(trial.cpu_s, cpu_s / batches)
        self._position = (self._position + 1) % len(self._trials)
        if all(item.rounds >= _ROUNDS for item in self._trials):
            self._choose()

    def _is_coarse_enough(self, split: BatchSplit, batch_task_s: float) -> bool:
        if split.chunks * split.groups == 1:
            return True
        return batch_task_s / (split.chunks * split.groups) >= MIN_TASK_TO_OVERHEAD * self.overhead_s

    def _choose(self) -> None:
        fastest = min(item.wall_s for item in self._trials)
        near = [item for item in self._trials if item.wall_s <= fastest * _TOLERANCE]
        self.choice = min(near, key=lambda item: item.cpu_s).split
