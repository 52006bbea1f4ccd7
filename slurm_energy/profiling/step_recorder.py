"""Recorder of the phases of this process: statistics, event file, and the document for the agent.

Recording a phase only appends a tuple; the statistics are computed every two seconds. The functions of this
module raise no error in the program, and wait neither for a file nor for the agent. A forked child starts
with an empty recorder.
"""

from __future__ import annotations

import atexit
import collections
import json
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from slurm_energy.diagnosis.json_codec import MAX_HINTS, MAX_NAME, rank_to_json
from slurm_energy.diagnosis.steps import STANDARD_PHASES, Hint, RankSteps
from slurm_energy.profiling.event_writer import EVENTS_DIRECTORY_KEY, EventWriter, event_capacity
from slurm_energy.profiling.process_identity import ProcessIdentity, current_process
from slurm_energy.profiling.progress import flush_progress, progress, report_document
from slurm_energy.profiling.step_statistics import StepStatistics, TimedPhase

log = logging.getLogger("slurm_energy")

NO_VALUE: Final = math.nan
_PERIOD_NS: Final = 2_000_000_000
_MAX_WAITING: Final = 4096
_LOCK_TIMEOUT_S: Final = 0.02
_STEP_FIELDS: Final = 5
_MIN_READY_BATCHES: Final = 8
"""Minimum number of batches for a mean time to receive a batch."""


class StepRecorder:
    """Recorder of the steps of a program in one process, and of their phases."""

    def __init__(self) -> None:
        self._waiting: collections.deque[tuple[Any, ...]] = collections.deque()
        self.append_step = self._waiting.append
        """Append a step of a loop: `(start_ns, received_ns, end_ns, samples, thread)`.

        The caller calls `collect` about every two seconds.
        """
        self._next_ns = 0
        self._lock = threading.Lock()
        self._statistics: StepStatistics | None = None
        self._process: ProcessIdentity | None = None
        self._writer: EventWriter | None = None
        self._is_fork = False
        self.gpu: int | None = None
        """Index of the process's GPU on the node; None if unknown."""
        self._hints: dict[str, Hint] = {}
        self._cpu_start_s: float | None = None
        self._loader_starts, self._loader_start_ns = 0, 0
        self._ready_batches, self._ready_batch_ns = 0, 0
        self._has_new = False
        self._failed = False
        self.untimed_steps = 0
        """Number of steps, in loops that have ended, since the last step whose phases were timed."""
        self.next_timed_ns = 0
        """Time from which on the phases of a step are timed, if its wait for data ends after this time."""

    def add(
        self, name: str, start_ns: int, end_ns: int, value: float = NO_VALUE, thread: int = 0, weight: int = 1
    ) -> None:
        """Record one execution of a phase.

        Args:
            name: name of the phase.
            start_ns: start in ns of `time.perf_counter_ns`.
            end_ns: end in ns of `time.perf_counter_ns`.
            value: number of samples of a training step; NaN means that the number is unknown, or that the
                phase is no step.
            thread: identifier of the thread; 0 for the calling thread.
            weight: number of steps that this execution represents.
        """
        if self._failed:
            return
        self._waiting.append((name, start_ns, end_ns, value, thread or threading.get_ident(), weight))
        if end_ns >= self._next_ns or len(self._waiting) >= _MAX_WAITING:
            self.collect()
            progress(0)  # sends the document if it is due

    def add_section(self, name: str, start_ns: int, end_ns: int) -> None:
        """Record a section of the profiler. Unlike `add`, this method opens no connection to the agent."""
        if not self._failed:
            self._waiting.append((name, start_ns, end_ns, NO_VALUE, threading.get_ident(), 1))
            if end_ns >= self._next_ns or len(self._waiting) >= _MAX_WAITING:
                self.collect()

    def hint(self, name: str, value: Hint | None) -> None:
        """Store a setting of the program that the diagnosis uses. A value of None is ignored."""
        is_good = isinstance(value, (bool, int, float)) and abs(value) < 1e15
        if isinstance(value, str) and value.isprintable() and len(value) <= MAX_NAME:
            is_good = True
        if value is not None and is_good and (name in self._hints or len(self._hints) < MAX_HINTS):
            self._hints[name] = value

    def start_cpu_time(self) -> None:
        """Start counting the CPU time of this process; later calls have no effect.

        The recorder reports this time as the hint `process_cpu_s`.
        """
        if self._cpu_start_s is None:
            self._cpu_start_s = time.process_time()

    def add_loader_start(self, wait_ns: int) -> None:
        """Record how long a program waited for the first batch of an epoch, while loader processes start.

        The waits are counted separately from all other waits, because they contain the start of the loader
        processes. A wait is not counted here if the program has no loader processes. The wait also counts as
        part of the phase `data`.
        """
        if self._hints.get("num_workers"):
            self._loader_starts += 1
            self._loader_start_ns += wait_ns

    def add_ready_batch(self, wait_ns: int) -> None:
        """Count the time to receive a batch that had arrived before the program requested it.

        The time also counts as part of the phase `data`.
        """
        self._ready_batches += 1
        self._ready_batch_ns += wait_ns

    def collect(self) -> None:
        """Add the recorded phases to the statistics and to the event file."""
        self._next_ns = time.perf_counter_ns() + _PERIOD_NS
        if self._lock.acquire(blocking=False):  # otherwise another thread collects
            try:
                self._collect()
            finally:
                self._lock.release()

    def add_samples(self, samples: float) -> None:
        """Add `samples` training samples to the total for the recorded steps."""
        self.collect()
        if self._statistics is not None:
            self._statistics.add_samples(samples)

    def result(self) -> RankSteps | None:
        """Return the statistics so far.

        Return None if nothing was recorded, or if another thread holds the lock of the recorder.
        """
        if not self._lock.acquire(timeout=_LOCK_TIMEOUT_S):
            return None
        try:
            self._collect()
            return self._result()
        finally:
            self._lock.release()

    def document(self, max_bytes: int) -> str | None:
        """Return the statistics as JSON text; None if nothing was recorded since the last call.

        Args:
            max_bytes: maximum length. If the text would be longer, details are left out.
        """
        if not self._has_new and not self._waiting:
            return None
        steps = self.result()
        if steps is None:
            return None
        self._has_new = False
        return fitting_json(steps, max_bytes)

    def close(self) -> None:
        """Record all remaining data of the program's steps. Call this when Python exits."""
        self.collect()
        if self._writer is not None:
            self._writer.place(*self._place())
            self._writer.close()

    def reset_after_fork(self) -> None:
        """Reset the recorder in a forked child process, so that it shares no data with its parent."""
        writer, waiting = self._writer, self._waiting
        waiting.clear()
        self.__dict__.update(StepRecorder().__dict__)
        # A loop that continues in the child still has the method of this deque.
        self._waiting, self.append_step = waiting, waiting.append
        self._is_fork = True
        if writer is not None:
            writer.abandon()

    def _collect(self) -> None:
        """Add the recorded phases of training steps to the statistics and the event file.

        The caller holds the lock.
        """
        if self._failed:
            self._waiting.clear()
        if not self._waiting:
            return
        try:
            statistics = self._statistics or self._open()
            next_item, writer = self._waiting.popleft, self._writer
            for _ in range(len(self._waiting)):
                item = next_item()
                if len(item) == _STEP_FIELDS:
                    statistics.add_step(*item)
                    if writer is not None:
                        start_ns, received_ns, end_ns, samples, thread = item
                        writer.add(TimedPhase("data", start_ns, received_ns, NO_VALUE, thread))
                        writer.add(TimedPhase("step", start_ns, end_ns, samples, thread))
                else:
                    phase = TimedPhase(*item)
                    statistics.add(phase)
                    if writer is not None:
                        writer.add(phase)
            self._has_new = True
        except Exception as error:
            self._failed = True
            self._waiting.clear()
            log.warning("slurm_energy: steps are not recorded: %s: %s", type(error).__name__, error)

    def _open(self) -> StepStatistics:
        unix_offset_ns = time.time_ns() - time.perf_counter_ns()
        self._process = current_process()
        self._statistics = StepStatistics(unix_offset_ns)
        directory = os.environ.get(EVENTS_DIRECTORY_KEY)
        if directory:
            self._writer = self._open_writer(self._process, Path(directory), unix_offset_ns)
        if self._is_fork and "multiprocessing.util" in sys.modules:
            # Such children end without the functions of atexit.
            sys.modules["multiprocessing.util"].Finalize(None, close_all, exitpriority=0)
        return self._statistics

    def _open_writer(
        self, process: ProcessIdentity, directory: Path, unix_offset_ns: int
    ) -> EventWriter | None:
        try:
            writer = EventWriter(process, directory, unix_offset_ns, self._collect_for_file, event_capacity())
            writer.start()
        except (OSError, RuntimeError) as error:  # no working directory, no more threads
            log.warning("slurm_energy: events are not written: %s", error)
            return None
        return writer

    def _collect_for_file(self) -> None:
        self.collect()
        if self._writer is not None:
            self._writer.place(*self._place())

    def _result(self) -> RankSteps | None:
        if self._statistics is None or self._process is None:
            return None
        rank, gpu = self._place()
        pid, hints = self._process.pid, dict(self._hints)
        if self._cpu_start_s is not None and len(hints) < MAX_HINTS:
            hints["process_cpu_s"] = round(time.process_time() - self._cpu_start_s, 3)
        if self._loader_starts and len(hints) < MAX_HINTS - 1:
            hints["loader_starts"] = self._loader_starts
            hints["loader_start_s"] = round(self._loader_start_ns * 1e-9, 3)
        if self._ready_batches >= _MIN_READY_BATCHES and len(hints) < MAX_HINTS:
            hints["ready_batch_s"] = round(self._ready_batch_ns * 1e-9 / self._ready_batches, 6)
        return self._statistics.result(node=self._process.node, rank=rank, gpu=gpu, pid=pid, hints=hints)

    def _place(self) -> tuple[int | None, int | None]:
        """Return the rank of this process, and the index of its GPU on the node. Unknown values are None."""
        rank = None if self._process is None else self._process.rank
        return process_rank(rank), self.gpu


def fitting_json(steps: RankSteps, max_bytes: int) -> str | None:
    """Return the steps of a process as JSON text of at most `max_bytes` characters.

    Details are left out if necessary. The result is None if even the shortest text is too long.
    """
    for simpler in _simplifications(steps):
        text = json.dumps(rank_to_json(simpler), separators=(",", ":"))
        if len(text) <= max_bytes:
            return text
    return None


def _simplifications(steps: RankSteps) -> Iterator[RankSteps]:
    """Yield smaller and smaller versions of the step statistics of a process.

    Each version has fewer details than the previous one, so that the caller can send the first one that is
    small enough.
    """
    yield steps
    for _ in range(3):
        if steps.intervals is not None and len(steps.intervals.steps) > 1:
            steps = replace(steps, intervals=steps.intervals.coarsened())
            yield steps
    steps = replace(steps, outliers=())
    yield steps
    standard = {name: phase for name, phase in steps.phases.items() if name in STANDARD_PHASES}
    yield replace(steps, phases=standard)
    yield replace(steps, phases=standard, intervals=None, hints={})


def process_rank(from_environment: int | None) -> int | None:
    """Return the rank of this process in its training program.

    The rank in torch.distributed takes precedence if torch.distributed is initialised. Otherwise
    `from_environment`, the rank in the environment, is returned. In a program that torchrun has started,
    the environment is misleading: it contains the rank of torchrun's own Slurm task.
    """
    torch = sys.modules.get("torch")
    try:
        if torch is not None and torch.distributed.is_available() and torch.distributed.is_initialized():
            return int(torch.distributed.get_rank())
    except Exception:
        log.debug("rank of torch.distributed is unknown", exc_info=True)
    return from_environment


def close_all() -> None:
    """Write and send all recorded data, at the exit of Python."""
    try:
        recorder.close()
        flush_progress()
    except Exception:
        log.debug("steps were not recorded at exit", exc_info=True)


recorder = StepRecorder()
report_document(recorder.document)
os.register_at_fork(after_in_child=recorder.reset_after_fork)
atexit.register(close_all)
