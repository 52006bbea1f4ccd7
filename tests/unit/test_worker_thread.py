"""Tests of the agent's worker thread, which runs tasks in order and a periodic task between them.

An error in a task must be reported, and must not end the thread.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from slurm_energy.agent.worker_thread import PeriodicTask, WorkerThread

DEADLINE_S = 60.0


@pytest.fixture
def worker() -> Iterator[WorkerThread]:
    worker = WorkerThread("test")
    yield worker
    worker.run_periodically(None)
    worker.shutdown()


def test_tasks_run_in_order_and_return_their_results(worker: WorkerThread) -> None:
    seen: list[int] = []
    futures = [worker.submit(lambda n=n: seen.append(n) or n * n) for n in range(50)]
    assert [future.result(DEADLINE_S) for future in futures] == [n * n for n in range(50)]
    assert seen == list(range(50))
    with pytest.raises(ZeroDivisionError):
        worker.submit(lambda: 1 / 0).result(DEADLINE_S)


def test_a_periodic_task_continues_after_an_error(worker: WorkerThread) -> None:
    enough, errors, count = threading.Event(), [], 0

    def work() -> None:
        nonlocal count
        count += 1
        if count >= 5:
            enough.set()
        raise RuntimeError(str(count))

    worker.run_periodically(PeriodicTask(work, lambda: 0.01, errors.append))
    while not enough.is_set():
        assert worker.submit(lambda: 7).result(DEADLINE_S) == 7
    assert enough.wait(DEADLINE_S)
    worker.run_periodically(None)
    worker.submit(int).result(DEADLINE_S)
    last = count
    assert [str(error) for error in errors] == [str(n + 1) for n in range(last)]
    assert worker.submit(lambda: count).result(DEADLINE_S) == last


def test_a_shorter_interval_counts_from_the_next_task_on(worker: WorkerThread) -> None:
    interval_s, worked = 3600.0, threading.Event()
    worker.run_periodically(PeriodicTask(worked.set, lambda: interval_s, pytest.fail))
    worker.submit(int).result(DEADLINE_S)
    assert not worked.is_set()
    interval_s = 0.01
    worker.submit(int).result(DEADLINE_S)
    assert worked.wait(DEADLINE_S)
