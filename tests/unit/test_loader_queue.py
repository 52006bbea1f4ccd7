"""Tests of the measured time in which a training program receives a batch from loader processes.

The recorder reports this time only for batches that are ready when the program requests them.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import pytest

import slurm_energy
from slurm_energy.profiling import loop_report, phases, progress, torch_phases
from slurm_energy.profiling.loader_queue import is_batch_ready, is_in_order
from slurm_energy.profiling.step_recorder import StepRecorder


class LoaderIterator:
    """Fake of PyTorch's iterator over loader processes, with the attributes that slurm-energy reads.

    Args:
        count: number of batches.
        ready: number of batches that have arrived when one is requested.
        early: number of batches that arrived too early, i.e. before a batch that must be returned first.
    """

    def __init__(self, count: int, ready: int, early: int = 0) -> None:
        self._left = count
        self._data_queue: queue.Queue[int] = queue.Queue()
        for _ in range(ready):
            self._data_queue.put(0)
        self._task_info: dict[int, tuple[Any, ...]] = {0: (0,)}
        self._task_info |= dict.fromkeys(range(1, early + 1), (0, "batch"))

    def __iter__(self) -> Iterator[int]:
        return self

    def __next__(self) -> int:
        if not self._left:
            raise StopIteration
        self._left -= 1
        return self._left


class WorkerLoader:
    """Stand-in for a loader with worker processes, with only the attributes that `watch` uses."""

    num_workers = 1

    def __init__(self, iterator: Any) -> None:
        self._iterator = iterator

    def __iter__(self) -> Any:
        return self._iterator


@pytest.mark.parametrize(
    ("iterator", "ready", "in_order"),
    [
        (LoaderIterator(1, ready=1), True, True),
        (LoaderIterator(1, ready=0), False, True),
        (LoaderIterator(1, ready=1, early=1), False, False),
        (iter([1]), False, False),
    ],
)
def test_readiness_of_a_batch(iterator: Any, ready: bool, in_order: bool) -> None:
    assert (is_batch_ready(iterator), is_in_order(iterator)) == (ready, in_order)


@pytest.mark.parametrize(
    ("iterator", "is_known"),
    [
        (LoaderIterator(9, ready=1), True),
        (LoaderIterator(8, ready=1), False),  # the first batch does not count, and seven are too few
        (LoaderIterator(20, ready=0), False),
        (LoaderIterator(20, ready=1, early=1), False),
        (iter(range(20)), False),
    ],
)
def test_time_to_receive_a_batch_is_reported(
    monkeypatch: pytest.MonkeyPatch, iterator: Any, is_known: bool
) -> None:
    for name in ("SLURM_JOB_ID", "SENERGY_EVENTS_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(progress, "_reporter", progress.ProgressReporter())
    monkeypatch.setattr(phases, "PROBE_PERIOD_NS", 0)
    own = StepRecorder()
    for module in (phases, torch_phases, loop_report):
        monkeypatch.setattr(module, "recorder", own)
    list(slurm_energy.watch(WorkerLoader(iterator)))
    steps = own.result()
    assert steps is not None
    mean_s = steps.hints.get("ready_batch_s")
    assert (mean_s is not None) == is_known
    if isinstance(mean_s, float):
        assert 0 <= mean_s <= steps.phases["data"].sum_s
