"""The worker thread, in which all code that uses hardware or disk runs.

The thread runs tasks in order, and takes periodic samples.

This thread also waits for the time of the next sample. If an event loop waited instead, each sample would
wake up two threads, which costs more than the sample.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any


class TimerGrid:
    """The times `origin + n x interval_s` for integers n.

    A missed time is skipped and not made up for.

    Args:
        origin: a time on the grid, in seconds of any clock that does not jump.
        interval_s: seconds between two times on the grid.
    """

    def __init__(self, origin: float, interval_s: float) -> None:
        self.interval_s = interval_s
        self._origin = origin
        self._last = 0

    def next(self, now: float) -> float:
        """Return the next time of the grid: after `now` and after all times returned earlier."""
        passed = math.floor((now - self._origin) / self.interval_s)
        self._last = max(self._last, passed) + 1
        return self._origin + self._last * self.interval_s


@dataclass(frozen=True, slots=True)
class PeriodicTask:
    """A task that runs at a regular interval.

    Attributes:
        work: function that performs the task.
        interval_s: returns the interval in seconds. This function is called again after every run of the
            task.
        failed: called with the error of a failed run. Later runs follow as usual.
    """

    work: Callable[[], object]
    interval_s: Callable[[], float]
    failed: Callable[[Exception], object]


class WorkerThread(Executor):
    """A thread that runs tasks in order, and between them a periodic task on a fixed time grid.

    A delayed run of the periodic task does not shift the following runs, and missed times are skipped. The
    thread starts with the first task.
    """

    def __init__(self, name: str) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name)
        self._periodic: PeriodicTask | None = None
        self._grid = TimerGrid(0.0, 1.0)
        self._due = 0.0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Queue a call of a function and return the future with its result."""
        future: Future[Any] = Future()

        def task() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._tasks.put(task)
        if self._thread.ident is None:
            self._thread.start()
        return future

    def run_periodically(self, periodic: PeriodicTask | None) -> None:
        """Make the worker thread run a periodic task.

        If the argument is None, the present periodic task stops after its current run.
        """
        self._periodic = periodic
        self.submit(self._reset_grid)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the thread after all queued tasks.

        Args:
            wait: whether to wait until the thread has ended.
            cancel_futures: ignored; all queued tasks run.
        """
        self._tasks.put(None)
        if wait and self._thread.ident is not None:
            self._thread.join()

    def _reset_grid(self) -> None:
        self._due = 0.0
        self._grid = TimerGrid(0.0, 0.0)

    def _run(self) -> None:
        while True:
            periodic = self._periodic
            pause_s = None if periodic is None else self._pause_s(periodic)
            if periodic is not None and pause_s is not None and pause_s <= 0:
                self._work(periodic)
                continue
            try:
                task = self._tasks.get(timeout=pause_s)
            except queue.Empty:
                continue
            if task is None:
                return
            task()

    def _pause_s(self, periodic: PeriodicTask) -> float:
        """Return the seconds until the next run of a periodic task.

        The runs follow each other at the interval of the task. If the interval has changed, the next run is
        one new interval after the current time.
        """
        interval_s, now = periodic.interval_s(), time.monotonic()
        if interval_s != self._grid.interval_s:
            self._grid = TimerGrid(now, interval_s)
            self._due = self._grid.next(now)
        return self._due - now

    def _work(self, periodic: PeriodicTask) -> None:
        try:
            periodic.work()
        except Exception as error:
            periodic.failed(error)
        self._due = self._grid.next(time.monotonic())
