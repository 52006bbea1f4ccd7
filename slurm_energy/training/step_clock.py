"""Times of events in a training step.

The times are taken on the CPU or on the current CUDA stream.
"""

from __future__ import annotations

import time
from typing import Any


class StepClock:
    """Stopwatch for the stages of a training step on a CPU or GPU.

    On a GPU, the program records events at the start and at the end of a stage. The time between the events
    is read later, so that the program does not wait for the GPU.

    Args:
        torch: the imported module `torch`.
        is_gpu: whether the model is on a GPU.
    """

    def __init__(self, torch: Any, *, is_gpu: bool) -> None:
        self._torch, self._is_gpu = torch, is_gpu

    def now(self) -> Any:
        """Return a mark of the present time, for measuring how long the stages of a training step take.

        On a CPU the mark is a time in seconds. On a GPU it is an event that is recorded on the current CUDA
        stream.
        """
        if not self._is_gpu:
            return time.perf_counter()
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        """Return the seconds between two times that `now` returned.

        On a GPU, the times are events. The method waits until the GPU has reached the later event.
        """
        if not self._is_gpu:
            return float(end - start)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3
