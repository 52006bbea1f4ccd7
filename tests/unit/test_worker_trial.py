"""Tests of a trial that adds loader processes to a training program between two epochs.

The trial adds loader processes while the training steps wait for data. The change is undone if the steps do
not become faster.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from property_examples import examples

import slurm_energy
from slurm_energy.errors import UsageError
from slurm_energy.profiling import worker_trial
from slurm_energy.profiling.worker_trial import EpochTimes, WorkerTrial


def epoch(step_s, data_s, steps=20):
    times = EpochTimes()
    for number in range(steps):
        jitter = 1 + 0.01 * (-1) ** number
        times.add(data_s * jitter, step_s * jitter)
    return times


def test_further_workers_stay_while_steps_become_faster():
    trial = WorkerTrial(1, 8)
    assert trial.end_epoch(epoch(1.0, 0.7)) == 4
    assert trial.result == "trying 1 -> 4"
    assert trial.end_epoch(epoch(0.31, 0.01)) == 4
    assert trial.result == "kept 1 -> 4"


def test_workers_that_do_not_help_are_undone_for_good():
    trial = WorkerTrial(2, 8)
    assert trial.end_epoch(epoch(1.0, 0.7)) == 8
    assert trial.end_epoch(epoch(0.99, 0.7)) == 2
    assert trial.result == "undone 2 -> 8"
    assert trial.end_epoch(epoch(1.0, 0.9)) == 2


@pytest.mark.parametrize("times", [epoch(1.0, 0.05), epoch(1.0, 0.9, steps=3), EpochTimes()])
def test_nothing_changes_without_waits_or_steps(times):
    trial = WorkerTrial(1, 8)
    assert trial.end_epoch(times) == 1
    assert not trial.result


@given(
    workers=st.integers(0, 16),
    limit=st.integers(1, 16),
    epochs=st.lists(st.tuples(st.floats(0.001, 10), st.floats(0, 1)), max_size=8),
)
@examples(60)
def test_workers_stay_within_the_permission_and_are_never_fewer_than_at_first(workers, limit, epochs):
    trial = WorkerTrial(workers, limit)
    for step_s, share in epochs:
        assert workers <= trial.end_epoch(epoch(step_s, share * step_s)) <= max(workers, limit)


class Loader:
    """Loader of fifteen items whose wait per item is divided by its number of processes.

    If `helps` is False, the wait does not depend on the number of processes.
    """

    batch_size = 4

    def __init__(self, clock, *, helps=True, **more):
        self.num_workers, self.prefetch_factor, self._clock, self._helps = 0, None, clock, helps
        self.__dict__.update(more)

    def __len__(self):
        return 15

    def __iter__(self):
        for item in range(15):
            self._clock.now += 30_000_000 // max(1, self.num_workers if self._helps else 1)
            yield item


class Clock:
    """Clock in nanoseconds for tests; the simulated programs advance it."""

    now = 1


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("slurm_energy.profiling.phases._now", lambda: clock.now)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)))
    return clock


def train(loader, clock, epochs, **options):
    """Train and return the number of processes of each epoch."""
    used = []
    for _ in range(epochs):
        used.append(loader.num_workers)
        for _ in slurm_energy.watch(loader, **options):
            clock.now += 10_000_000
    return used


def test_loop_changes_the_loader_only_with_permission(clock):
    assert train(Loader(clock), clock, 3) == [0, 0, 0]
    loader = Loader(clock)
    assert train(loader, clock, 4, max_workers=16) == [0, 4, 6, 6]
    assert loader.prefetch_factor == 2
    assert train(Loader(clock, helps=False), clock, 4, max_workers=3) == [0, 3, 0, 0]


def test_loader_with_persistent_processes_or_without_a_number_is_left_alone(clock):
    assert train(Loader(clock, persistent_workers=True), clock, 3, max_workers=4) == [0, 0, 0]
    for _ in slurm_energy.watch(range(20), max_workers=4):
        clock.now += 1_000_000


def test_loader_that_refuses_the_change_goes_on_unchanged(clock):
    class Fixed(Loader):
        def __setattr__(self, name, value):
            if name == "num_workers" and name in self.__dict__:
                raise ValueError("fixed")
            super().__setattr__(name, value)

    assert train(Fixed(clock), clock, 3, max_workers=4) == [0, 0, 0]


def test_never_more_processes_than_cpus(clock):
    assert worker_trial.trial_of(Loader(clock), 100)._max_workers == 6


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "4"])
def test_malformed_permission_is_refused(value):
    with pytest.raises(UsageError, match="max_workers"):
        slurm_energy.watch([], max_workers=value)
