"""Values of the signals of one GPU of a job, in the time between its first and last activity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from slurm_energy.diagnosis.distribution import percentile
from slurm_energy.diagnosis.series_means import between, mean_of
from slurm_energy.diagnosis.signals import ObservedSeries

_RARELY = 98.0
_NO_WORK = 0.5
"""Maximum percentage of busy time with which a GPU that is busy in few intervals counts as idle."""


@dataclass(frozen=True, slots=True)
class GpuView:
    """Signals of one GPU of the job.

    Attributes:
        node: node of the GPU.
        part: `gpu[INDEX]`.
        series: series of the GPU by signal.
        active: index of the first interval of `gpu_busy_percent` in which the GPU was active, and index of
            the interval after the last active interval. None if the GPU was never active, or if its activity
            is unknown.
    """

    node: str
    part: str
    series: Mapping[str, ObservedSeries]
    active: tuple[int, int] | None

    @property
    def name(self) -> str:
        """Names of the node and of the GPU, as text for readers."""
        return f"{self.node} {self.part}"

    @property
    def active_s(self) -> float:
        """Seconds between the first and the last time at which the GPU was busy."""
        busy = self.series.get("gpu_busy_percent")
        return (
            0.0
            if busy is None or self.active is None
            else busy.interval_s * (self.active[1] - self.active[0])
        )

    def values(self, signal: str) -> list[float]:
        """Return the known values of a signal of the GPU while the GPU is in use.

        These are the values between its first and its last activity.
        """
        series, busy = self.series.get(signal), self.series.get("gpu_busy_percent")
        if series is None:
            return []
        if self.active is None or busy is None:
            return series.known()
        from_s = busy.start_s + self.active[0] * busy.interval_s
        to_s = busy.start_s + self.active[1] * busy.interval_s
        return between(series, from_s, to_s)

    def mean(self, signal: str) -> float | None:
        """Return the mean of a signal of the GPU while the GPU is in use; None if unknown.

        The mean covers the time between the first and the last activity of the GPU.
        """
        return mean_of(self.values(signal))

    def working_mean(self, signal: str, min_busy: float) -> float | None:
        """Return the mean of a signal over the intervals in which the GPU was busy; None if unknown.

        Args:
            signal: name of a signal that is sampled together with `gpu_busy_percent`.
            min_busy: minimum use of the GPU in percent.
        """
        series, busy = self.series.get(signal), self.series.get("gpu_busy_percent")
        if series is None or busy is None or series.interval_s != busy.interval_s:
            return self.mean(signal)
        shift = round((busy.start_s - series.start_s) / series.interval_s)
        pairs = zip(busy.values, islice(series.values, max(0, shift), None), strict=False)
        return mean_of([value for use, value in pairs if use >= min_busy and not math.isnan(value)])

    def maximum(self, signal: str) -> float | None:
        """Return the maximum of a signal; None if unknown."""
        series = self.series.get(signal)
        return max(series.known(), default=None) if series else None

    def high(self, signal: str) -> float | None:
        """Return the 90th percentile of a signal between the first and the last activity; None if unknown."""
        values = sorted(self.values(signal))
        return percentile(values, 90) if values else None

    def memory_share(self) -> float | None:
        """Return the maximum percentage of the GPU memory that was in use; None if unknown."""
        used, total = self.maximum("gpu_memory_used_bytes"), self.maximum("gpu_memory_total_bytes")
        return None if used is None or not total else 100 * used / total


def active_range(busy: ObservedSeries | None, threshold: float) -> tuple[int, int] | None:
    """Return the index of the first interval with GPU activity, and the last such index plus 1.

    Return None if the GPU was never active or its activity is unknown.

    Args:
        busy: use of the GPU in percent; None means unknown.
        threshold: maximum use of an idle GPU in percent.
    """
    if busy is None:
        return None
    known = sorted(busy.known())
    if known and percentile(known, _RARELY) <= threshold and (mean_of(known) or 0.0) <= _NO_WORK:
        return None  # a program that only lists the GPUs, or opens a context on each
    active = [index for index, value in enumerate(busy.values) if value > threshold]
    return (active[0], active[-1] + 1) if active else None
