"""Times of events of a training step, on the CPU or on the current CUDA stream."""

from __future__ import annotations

import time
from typing import Any


class StepClock:
    """Clock of a device. Moments on a GPU are read later, so that the program never waits for it.

    Args:
        torch: the module PyTorch.
        is_gpu: whether the model is on a GPU.
    """

    def __init__(self, torch: Any, *, is_gpu: bool) -> None:
        self._torch, self._is_gpu = torch, is_gpu

    def now(self) -> Any:
        """Return this moment: seconds, or a recorded event of the current stream."""
        if not self._is_gpu:
            return time.perf_counter()
        event = self._torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, end: Any) -> float:
        """Return the seconds between two moments. For a GPU it waits until the second one has passed."""
        if not self._is_gpu:
            return float(end - start)
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3
