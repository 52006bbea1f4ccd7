"""Trial of more loader processes in a running program.

The number of processes is changed between epochs, and a change that does not make steps faster is undone.

A program permits the trial with `watch(loader, max_workers=8)`. If the steps of an epoch wait for data, the
next epoch gets as many processes as are needed to load data as fast as the rest of a step. The change is kept
if the steps of the new epoch take less time; otherwise the old number is restored for good. The functions of
this module raise no error in the program.
"""

from __future__ import annotations

import logging
import math
import os
import weakref
from dataclasses import dataclass
from typing import Any, Final

from slurm_energy.profiling.step_recorder import recorder

log = logging.getLogger("slurm_energy")

_MIN_STEPS: Final = 8
"""Minimum number of steps of an epoch that is evaluated."""
_DATA_SHARE: Final = 0.1
"""Minimum fraction of the step time spent waiting for data at which processes are added.

It equals `data_share`.
"""
_SPARE_WORKERS: Final = 1.1
_MIN_GAIN: Final = 0.03
_CONFIDENCE: Final = 2.0
"""Number of standard errors of the mean step time that a gain must exceed."""
_DEFAULT_PREFETCH: Final = 2


@dataclass(slots=True)
class EpochTimes:
    """Times of the steps of one epoch, in seconds.

    Attributes:
        steps: number of steps.
        data_s: time spent waiting for data.
        step_s: total time of the steps.
        square_s: sum of the squares of the step times.
    """

    steps: int = 0
    data_s: float = 0.0
    step_s: float = 0.0
    square_s: float = 0.0

    def add(self, data_s: float, step_s: float) -> None:
        """Add a step."""
        self.steps += 1
        self.data_s += data_s
        self.step_s += step_s
        self.square_s += step_s * step_s

    @property
    def mean_s(self) -> float:
        """Mean time of a step in seconds."""
        return self.step_s / self.steps

    @property
    def error_s(self) -> float:
        """Standard error of the mean seconds that a step takes."""
        return math.sqrt(max(0.0, self.square_s / self.steps - self.mean_s**2) / self.steps)


class WorkerTrial:
    """Search for the number of loader processes with which a data loader is fast enough.

    A higher number is tried for one epoch. The number changes only between epochs.

    Args:
        workers: number of processes in the first epoch; 0 means that the program loads the data itself.
        max_workers: maximum number of processes to try.
    """

    def __init__(self, workers: int, max_workers: int) -> None:
        self.workers, self._max_workers = workers, max_workers
        self._previous: tuple[int, EpochTimes] | None = None
        self._is_over = False
        self.result = ""
        """Last change and whether it was kept, such as `kept 1 -> 4`; empty: none."""

    def end_epoch(self, times: EpochTimes) -> int:
        """Return the number of loader processes for the next epoch of the training.

        A higher number is tried for one epoch. It is kept if the epoch was faster, and undone otherwise.

        Args:
            times: times of the steps of the epoch that has ended.
        """
        if times.steps < _MIN_STEPS or times.step_s <= 0 or self._is_over:
            return self.workers
        if self._previous is not None:
            old, before = self._previous
            self._previous = None
            if not _is_faster(before, times):
                self.result, self.workers, self._is_over = f"undone {old} -> {self.workers}", old, True
                return self.workers
            self.result = f"kept {old} -> {self.workers}"
        wanted = min(self._wanted(times), self._max_workers)
        if wanted > self.workers:
            self._previous = self.workers, times
            self.result, self.workers = f"trying {self.workers} -> {wanted}", wanted
        return self.workers

    def _wanted(self, times: EpochTimes) -> int:
        """Return the number of loader processes that keep up with the rest of each training step."""
        rest_s = times.step_s - times.data_s
        if times.data_s < _DATA_SHARE * times.step_s or rest_s <= 0:
            return self.workers
        work_s = self.workers * times.step_s if self.workers else times.data_s
        return math.ceil(min(_SPARE_WORKERS * work_s / rest_s, 1024))


def _is_faster(before: EpochTimes, after: EpochTimes) -> bool:
    gain_s = before.mean_s - after.mean_s
    noise_s = _CONFIDENCE * math.hypot(before.error_s, after.error_s)
    return gain_s > max(_MIN_GAIN * before.mean_s, noise_s)


_TRIALS: weakref.WeakKeyDictionary[Any, WorkerTrial] = weakref.WeakKeyDictionary()
"""Trials by loader. A trial spans several calls of `watch`, one per epoch."""


def trial_of(loader: Any, max_workers: int) -> WorkerTrial | None:
    """Return the trial that searches for the best number of loader processes.

    Return None if this number cannot be changed between epochs. It cannot be changed if the loader processes
    persist between epochs.

    Args:
        loader: a `torch.utils.data.DataLoader`, or an object with an attribute `num_workers` like it.
        max_workers: maximum number of processes. The number never exceeds the number of CPUs on which this
            process may run.
    """
    try:
        trial = _TRIALS.get(loader)
        workers = getattr(loader, "num_workers", None)
        if trial is None and type(workers) is int and not getattr(loader, "persistent_workers", False):
            trial = _TRIALS[loader] = WorkerTrial(workers, min(max_workers, len(os.sched_getaffinity(0))))
        return trial
    except Exception as error:
        log.info("slurm_energy: loader processes are not adjusted: %s", error)
        return None


def end_epoch(loader: Any, trial: WorkerTrial, times: EpochTimes) -> None:
    """Evaluate the measured times of an epoch, and set the number of loader processes for the next.

    Errors are only logged.

    Args:
        loader: data loader of the training.
        trial: search for a better number of loader processes.
        times: measured times of the epoch that has ended.
    """
    try:
        before, workers = trial.workers, trial.end_epoch(times)
        if workers != before:
            if getattr(loader, "prefetch_factor", 0) is None:  # of a loader without processes
                loader.prefetch_factor = _DEFAULT_PREFETCH
            loader.num_workers = workers
        if trial.result:
            recorder.hint("worker_trial", trial.result)
    except Exception as error:
        log.info("slurm_energy: loader processes are not adjusted: %s", error)
