"""Forecast of the additional nodes that jobs will need within the next minutes to hours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DAY_S: Final = 86400.0
_HOUR_S: Final = 3600.0
_WEEK_DAYS: Final = 7
_HORIZONS_S: Final = (0.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0, 14400.0)
_OTHER_HOUR_WEIGHT: Final = 0.3
"""Weight of a sample from another hour of the day, relative to one from the same hour, without history."""
_POOLED_DAYS: Final = 2.0
"""Days of history after which the weight of other hours is halved: the samples of one hour then suffice."""
_OTHER_DAY_WEIGHT: Final = 0.25
"""Weight of a sample from a weekend on a working day, and conversely."""
_HALF_LIFE_S: Final = 14 * DAY_S
_KEPT_PROBABILITIES: Final = 16


def horizons(points_s: Sequence[float]) -> Floats:
    """Return the ends of the forecast's time bins in seconds from now, ascending. The first end is 0.

    Args:
        points_s: times that must be among the ends of bins, such as the boot time.
    """
    points = [point for point in points_s if 0 < point < float("inf")]
    return np.unique(np.array([*_HORIZONS_S, *points]))


@dataclass(frozen=True, slots=True)
class DemandForecast:
    """Forecast of the additional demand for nodes, as s weighted scenarios.

    A scenario is one possible development of the demand. Some names in the code call it a course. All
    scenarios have the same time bins. Demand is counted in nodes; a job on half of a node counts 0.5.

    Attributes:
        horizon_s: ends of the time bins in seconds from now, shape (h,).
        peaks: highest demand of jobs that have not arrived yet, by scenario and time bin, shape (s, h).
        weights: weights of the scenarios, shape (s,). Their sum is 1.
    """

    horizon_s: Floats
    peaks: Floats
    weights: Floats
    _probabilities: dict[tuple[bytes, bytes], Floats] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def rise(self, known: Floats) -> Floats:
        """Return the largest additional demand for nodes from now until the end of each time bin.

        The result has shape (s, h): one row per scenario and one column per bin. A scenario is one possible
        development of the demand.

        Args:
            known: change of the demand in each bin that known jobs cause, shape (h,). It is the result of
                `known_change`.
        """
        rise: Floats = np.maximum.accumulate(self.peaks + known, axis=1)
        return rise

    def probability(self, known: Floats, nodes: Floats) -> Floats:
        """Return the probability that the demand for nodes exceeds given numbers of nodes.

        Each probability refers to the time from now to the end of one of h time bins.

        Args:
            known: change of the demand in each bin that the already known jobs cause, shape (h,).
            nodes: k numbers of nodes with which the demand is compared, shape (k,).

        Returns:
            Probability, for each number and each bin, that the demand exceeds the number at some time before
            the end of the bin, shape (k, h). The probabilities do not decrease with time, and do not
            increase with the number of nodes.
        """
        key = (known.tobytes(), np.asarray(nodes, np.float64).tobytes())
        probability = self._probabilities.get(key)
        if probability is None:
            # Decisions follow each other closely, and the known jobs seldom change in between.
            while len(self._probabilities) >= _KEPT_PROBABILITIES:
                del self._probabilities[next(iter(self._probabilities))]
            probability = self._probabilities[key] = self._probability(known, nodes)
        return probability

    def _probability(self, known: Floats, nodes: Floats) -> Floats:
        rise = self.rise(known)
        order = np.argsort(rise, axis=0, kind="stable")
        limits = np.asarray(nodes, np.float64) + 1e-9
        probability = np.empty((len(limits), rise.shape[1]))
        for column in range(rise.shape[1]):
            rows = order[:, column]
            tail = np.append(np.cumsum(self.weights[rows][::-1])[::-1], 0.0)
            probability[:, column] = tail[np.searchsorted(rise[rows, column], limits, side="right")]
        probability = np.maximum.accumulate(np.minimum(1.0, probability), axis=1)  # sums differ by rounding
        return np.asarray(probability, np.float64)


def known_change(horizon_s: Floats, in_s: Floats, nodes: Floats) -> Floats:
    """Return the maximum change of the demand that known jobs cause in each time bin, shape (h,).

    Args:
        horizon_s: ends of the bins in seconds from now, shape (h,).
        in_s: time of each change in seconds from now, shape (c,). The changes are starts of pending,
            deferred or reserved jobs, and ends of running jobs. Changes in the past count as changes at the
            current time.
        nodes: increase (positive) or decrease (negative) of the number of needed nodes at each change, shape
            (c,).
    """
    return _bin_peaks(horizon_s, np.maximum(in_s, 0.0), nodes)


def _bin_peaks(horizon_s: Floats, in_s: Floats, nodes: Floats) -> Floats:
    """Return the highest number of additional nodes that are needed in each time bin of a forecast.

    The number of nodes at a time is the sum of all changes up to this time. If several changes have the same
    time, decreases are applied first.

    Args:
        horizon_s: ends of the time bins, in seconds from now.
        in_s: time of each change, in seconds from now.
        nodes: change of the number of needed nodes at each of these times.
    """
    order = np.lexsort((nodes, in_s))
    level = np.concatenate([[0.0], np.cumsum(nodes[order])])
    ends = np.searchsorted(in_s[order], horizon_s, side="right")
    # Changes at time 0 belong together to the first bin: a release and a request at once need no node.
    starts = np.concatenate([[ends[0]], ends[:-1]])
    peaks = np.array(
        [level[first : last + 1].max() for first, last in zip(starts.tolist(), ends.tolist(), strict=True)]
    )
    return np.asarray(peaks, np.float64)


class DemandHistory:
    """Past demand of the jobs of one pool of nodes, from which the future demand is forecast.

    The history contains samples. A sample is the demand over time after one moment in the past. It counts
    only the jobs that arrived after this moment, as if each job had started on arrival.

    Args:
        horizon_s: ends of the time bins, from `horizons`.
        step_s: seconds between the moments of two samples.
        max_days: maximum age of a sample in days. Older samples are discarded.
        utc_offset_s: returns local time minus the clock of the history at each of the given times, in
            seconds. Hours of the day and weekdays are those of local time. None means that the clock of the
            history is local time.

    Attributes:
        horizon_s: ends of the time bins.
    """

    def __init__(
        self,
        horizon_s: Floats,
        step_s: float = 900.0,
        max_days: float = 56.0,
        utc_offset_s: Callable[[Floats], Floats] | None = None,
    ) -> None:
        self.horizon_s = horizon_s
        self._step_s = step_s
        self._max_samples = max(1, int(max_days * DAY_S / step_s))
        self._utc_offset_s = utc_offset_s
        self._times: list[float] = []
        self._peaks: list[Floats] = []
        self._latest: tuple[int, DemandForecast] | None = None

    @property
    def covered_s(self) -> float:
        """Return the seconds between the first and the last moment for which the demand is recorded."""
        return self._times[-1] - self._times[0] if self._times else 0.0

    def extend(self, begin_s: float, until_s: float, submit_s: Floats, time_s: Floats, nodes: Floats) -> None:
        """Add scenarios of the demand for nodes, one for each further moment in the past.

        A scenario is the demand that followed a past moment. Scenarios are added for moments since the last
        call, at equal distances. A moment is used only if the demand after it is known for the whole horizon
        of the forecast.

        Args:
            begin_s: time from which all arrivals are known.
            until_s: time until which all arrivals are known.
            submit_s: arrival of each job, ascending, on the same clock, shape (n,).
            time_s: run time of each job in seconds, shape (n,).
            nodes: nodes of each job, shape (n,).
        """
        first_s = self._times[-1] + self._step_s if self._times else begin_s
        last_s = until_s - float(self.horizon_s[-1])
        moments_s = np.arange(first_s, last_s + 1e-9, self._step_s)[-self._max_samples :]
        lows = np.searchsorted(submit_s, moments_s, side="right").tolist()
        highs = np.searchsorted(submit_s, moments_s + self.horizon_s[-1], side="right").tolist()
        for moment_s, low, high in zip(moments_s.tolist(), lows, highs, strict=True):
            begins_s = submit_s[low:high] - moment_s
            changes_s = np.concatenate([begins_s, begins_s + time_s[low:high]])
            sizes = np.concatenate([nodes[low:high], -nodes[low:high]])
            self._times.append(moment_s)
            self._peaks.append(_bin_peaks(self.horizon_s, changes_s, sizes))
        self._latest = None
        surplus = len(self._times) - self._max_samples
        if surplus > 0:
            del self._times[:surplus], self._peaks[:surplus]

    def forecast(self, now_s: float) -> DemandForecast:
        """Return the forecast that is made at the time `now_s`.

        The past demand at the same hour of similar days has the highest weight. Without a history, the
        forecast has a single scenario, in which no job arrives.
        """
        step = int(now_s // self._step_s)
        if self._latest is None or self._latest[0] != step:
            self._latest = (step, self._forecast(step * self._step_s))
        return self._latest[1]

    def _forecast(self, now_s: float) -> DemandForecast:
        if not self._times:
            shape = (1, len(self.horizon_s))
            return DemandForecast(self.horizon_s, np.zeros(shape), np.ones(1))
        return DemandForecast(
            self.horizon_s, np.array(self._peaks), self._weights(np.array(self._times), now_s)
        )

    def _weights(self, times_s: Floats, now_s: float) -> Floats:
        local_s, local_now_s = self._local(times_s), self._local(np.array([now_s]))
        hours = np.abs(_hour_of_day(local_s) - _hour_of_day(local_now_s))
        same_hour = np.minimum(hours, 24 - hours) <= 1.0
        same_day = _is_weekend(local_s) == _is_weekend(local_now_s)
        other_hour = _OTHER_HOUR_WEIGHT / (1.0 + self.covered_s / (_POOLED_DAYS * DAY_S))
        weights = np.where(same_hour, 1.0, other_hour) * np.where(same_day, 1.0, _OTHER_DAY_WEIGHT)
        weights = weights * 0.5 ** (np.maximum(0.0, now_s - times_s) / _HALF_LIFE_S)
        normalised: Floats = weights / weights.sum()
        return normalised

    def _local(self, times_s: Floats) -> Floats:
        return times_s if self._utc_offset_s is None else times_s + self._utc_offset_s(times_s)


def _hour_of_day(local_s: Floats) -> Floats:
    return local_s % DAY_S / _HOUR_S


def _is_weekend(local_s: Floats) -> NDArray[np.bool_]:
    # 1 January 1970 was a Thursday.
    is_weekend: NDArray[np.bool_] = (local_s // DAY_S + 3) % _WEEK_DAYS >= 5
    return is_weekend
