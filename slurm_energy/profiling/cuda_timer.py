"""Times of phases on the GPU, read from CUDA events without synchronisation.

The GPU executes the work of a phase after the program has submitted the work. Two CUDA events in the stream
measure the execution. The times of the events are read when the GPU has passed the events, usually a step or
two later.
"""

from __future__ import annotations

import collections
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

_MAX_PENDING: Final = 512
_ANCHOR_NS: Final = 60_000_000_000
"""Age in ns at which a new event becomes the reference. Elapsed times are 32-bit floats of milliseconds."""


class Mark(NamedTuple):
    """A position in the current CUDA stream, marked by a recorded CUDA event.

    Attributes:
        event: the CUDA event.
        submitted_ns: time at which the program submitted the event. The GPU passes the event at that time
            or later.
    """

    event: Any
    submitted_ns: int


class CudaTimer:
    """Timer of phases on the current GPU.

    Args:
        cuda: the module `torch.cuda`.
        record: function that stores a phase. Its arguments are the name, the start and end in ns of
            `time.perf_counter_ns`, and the weight.
    """

    def __init__(self, cuda: Any, record: Callable[[str, int, int, int], None]) -> None:
        self._cuda = cuda
        self._record = record
        self._free: list[Any] = []
        self._pending: collections.deque[tuple[str, Mark, Mark, int]] = collections.deque()
        self._anchor: Mark | None = None
        self._anchor_ns = 0

    def mark(self) -> Mark | None:
        """Record an event in the current stream and return its mark.

        Return None while a CUDA graph is captured.
        """
        if self._cuda.is_current_stream_capturing():
            return None
        event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
        mark = Mark(event, time.perf_counter_ns())
        event.record()
        return mark

    def add(self, name: str, begin: Mark | None, end: Mark | None, weight: int = 1) -> None:
        """Add a phase that lies between two marks in the work of the GPU.

        A later call of `poll` records the time of the phase.
        """
        if begin is not None and end is not None and len(self._pending) < _MAX_PENDING:
            self._pending.append((name, begin, end, weight))

    def poll(self) -> None:
        """Record the phases that the GPU has completed."""
        if not self._pending or self._cuda.is_current_stream_capturing():
            return
        while self._pending and self._pending[0][2].event.query():
            name, begin, end, weight = self._pending.popleft()
            start_ns = self._start_ns(begin)
            duration_ns = round(begin.event.elapsed_time(end.event) * 1e6)
            self._record(name, start_ns, start_ns + duration_ns, weight)
            self._free += [mark.event for mark in (begin, end) if mark is not self._anchor]

    def _start_ns(self, mark: Mark) -> int:
        """Return the time in ns at which the GPU passed a mark (a recorded CUDA event).

        The clocks of the GPU and the program are aligned with this rule: the GPU passes no mark before the
        program submits the mark. The alignment is exact as soon as the GPU has waited for the program once.
        """
        if self._anchor is None:
            self._anchor, self._anchor_ns = mark, mark.submitted_ns
            return self._anchor_ns
        start_ns: int = self._anchor_ns + round(self._anchor.event.elapsed_time(mark.event) * 1e6)
        if start_ns < mark.submitted_ns:
            self._anchor_ns += mark.submitted_ns - start_ns
            start_ns = mark.submitted_ns
        if mark.submitted_ns - self._anchor.submitted_ns > _ANCHOR_NS:
            self._anchor, self._anchor_ns = mark, start_ns
        return start_ns


def gpu_index(device: int, environment: Mapping[str, str] = os.environ) -> int | None:
    """Return the index of one of this process's GPUs among all GPUs of the node.

    The result is None if the environment variables do not determine the index. Slurm numbers the GPUs of a
    job from 0 in CUDA_VISIBLE_DEVICES if the job can access only its own GPUs. The variables SLURM_STEP_GPUS
    and SLURM_JOB_GPUS contain the indexes on the node.

    Args:
        device: number of the GPU in the program.
        environment: environment variables of the process.
    """
    visible = _indexes(environment.get("CUDA_VISIBLE_DEVICES"))
    allocated = _indexes(environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS"))
    if allocated is not None:
        if visible is not None and len(visible) != len(allocated):
            return None
        visible = allocated if visible is None or visible == list(range(len(visible))) else visible
    elif visible is None:
        return (
            device
            if "CUDA_VISIBLE_DEVICES" not in environment and "SLURM_JOB_ID" not in environment
            else None
        )
    return visible[device] if device < len(visible) else None


def _indexes(text: str | None) -> list[int] | None:
    """Return a list of indexes such as `0,1,4-6`; None if the text is no list of indexes."""
    if not text:
        return None
    indexes: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        last = last or first
        if not all(number.isascii() and number.isdecimal() and len(number) < 5 for number in (first, last)):
            return None
        indexes += range(int(first), int(last) + 1)
    return indexes
