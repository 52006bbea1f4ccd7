"""Recorder of training steps for frameworks whose callbacks mark single instants.

A callback of such a framework reports that something begins or ends. This module derives the steps, their
phases and the waits for data from these instants.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from slurm_energy.profiling.loop_report import LoopReport
from slurm_energy.profiling.step_recorder import NO_VALUE, recorder
from slurm_energy.profiling.torch_phases import TorchPhases

log = logging.getLogger("slurm_energy")

_now = time.perf_counter_ns
_Method = TypeVar("_Method", bound=Callable[..., Any])


def never_fails(method: _Method) -> _Method:
    """Return a callback method that never raises: it logs its first error and does nothing from then on."""

    @functools.wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not getattr(self, "_failed", False):
            try:
                return method(self, *args, **kwargs)
            except Exception as error:
                self._failed = True
                log.warning("slurm_energy: steps are not recorded: %s: %s", type(error).__name__, error)
        return None

    return guarded  # type: ignore[return-value]


class StepMarks:
    """Recorder of the training steps of a program that uses a training framework.

    The time between two steps is recorded as wait for data. Evaluations and checkpoints between the steps
    are recorded separately.

    Args:
        phases: timer of the model's phases.
    """

    def __init__(self, phases: TorchPhases) -> None:
        self._phases = phases
        self._idle_ns = _now()
        self._step_ns = self._idle_ns
        self._received_ns = self._idle_ns
        self._open: Any = None
        self._thread = threading.get_ident()
        self._is_first = True
        self._steps = 0
        self._report = LoopReport()
        self._report_ns = self._report_steps = 0

    def rest(self) -> None:
        """Mark the start of the wait for the next batch, after work that belongs to no phase."""
        self._idle_ns = _now()

    def begin_epoch(self) -> None:
        """Mark the start of an epoch. The wait for its first batch starts now."""
        self._idle_ns = _now()
        self._is_first = True

    def end_pause(self, name: str) -> None:
        """Record the time since the last recorded mark as an evaluation or a checkpoint.

        `name` is the name of this phase.
        """
        start_ns, self._idle_ns = self._idle_ns, _now()
        recorder.add(name, start_ns, self._idle_ns)

    def pause(self, name: str, start_ns: int) -> None:
        """Record an evaluation or a checkpoint that started at `start_ns` and ends now."""
        self._idle_ns = _now()
        recorder.add(name, start_ns, self._idle_ns)

    def begin_step(self, copy_ns: int = 0) -> None:
        """Mark the start of the work on a batch.

        Args:
            copy_ns: duration of a copy to the device, at the end of the wait for the batch. The copy does not
                count as part of the wait.
        """
        now = _now()
        self._step_ns, self._received_ns = self._idle_ns, now - copy_ns
        if self._is_first:
            recorder.add_loader_start(self._received_ns - self._step_ns)
            self._is_first = False
        recorder.untimed_steps += 1
        if now >= recorder.next_timed_ns:
            self._phases.begin_step(self._step_ns, recorder.untimed_steps)
            recorder.untimed_steps = 0
        if copy_ns:
            self._phases.add_copy(now - copy_ns, now)

    def switch(self, name: str | None) -> None:
        """End the current phase of the model, and begin another phase unless the name is None."""
        if self._open is not None:
            self._open.__exit__(None, None, None)
            self._open = None
        if name is not None and self._phases.times_step:
            self._open = self._phases.timed(name)
            self._open.__enter__()

    def end_step(self, samples: float = NO_VALUE, total: float | None = None) -> None:
        """Record the step that ends now, and report it as progress.

        Args:
            samples: samples of the step; NaN means unknown.
            total: total number of steps of this process, if known.
        """
        if self._open is not None:
            self.switch(None)
        self._idle_ns = end_ns = _now()
        if self._phases.times_step:
            recorder.next_timed_ns = self._phases.end_step(end_ns)
        recorder.append_step((self._step_ns, self._received_ns, end_ns, samples, self._thread))
        self._steps += 1
        self._report.total = total
        if end_ns >= self._report_ns or self._steps >= self._report_steps:
            self._report_ns, self._report_steps = self._report.send(end_ns, self._steps)

    def close(self) -> None:
        """Remove the hooks of the model and report the last steps."""
        self._open = None
        self._phases.detach()
        recorder.collect()
        self._report.close(self._steps)
