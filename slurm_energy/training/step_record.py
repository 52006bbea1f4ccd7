"""Measured steps of the sets of ranks that have computed together. Pure.

Step times predicted for a set of ranks that has not computed yet can be wrong: the time per sample depends
on the number of samples, and the computation hides a part of the exchange. A measurement replaces the
prediction.
"""

from __future__ import annotations

import collections
import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Final

from slurm_energy.training.shares import ExchangeCost, RankCost, Split, predict

_WINDOWS: Final = 5
_VALID_WINDOWS: Final = 16
"""Windows for which the measurement of a set that no longer computes counts; doubled with each return."""


class StepRecord:
    """Last windows of each set of ranks."""

    def __init__(self) -> None:
        self._windows: dict[tuple[int, ...], collections.deque[tuple[tuple[int, ...], float]]] = {}
        self._entered: tuple[int, ...] | None = None
        self._ages: collections.Counter[tuple[int, ...]] = collections.Counter()
        self._entries: collections.Counter[tuple[int, ...]] = collections.Counter()
        self._current: tuple[int, ...] | None = None

    def add(self, samples: Sequence[int], step_s: float) -> None:
        """Record the median seconds of the steps of a window.

        Args:
            samples: samples of each rank in these steps.
            step_s: seconds of a step, with the exchange of gradients.
        """
        active = tuple(rank for rank, count in enumerate(samples) if count)
        if active == self._entered:
            self._windows.pop(active, None)
            self._entered = None
        windows = self._windows.setdefault(active, collections.deque(maxlen=_WINDOWS))
        windows.append((tuple(samples), step_s))
        self._current = active
        self._ages.update(self._windows.keys() - {active})
        self._ages[active] = 0

    def __contains__(self, active: tuple[int, ...]) -> bool:
        """Return whether a set of ranks has a measurement."""
        return active in self._windows

    def enter(self, active: tuple[int, ...]) -> None:
        """Replace the earlier measurements of a set of ranks at its next one, because they may be old."""
        self._entered = active
        self._entries[active] += 1

    def returns(self, active: tuple[int, ...]) -> int:
        """Return how often ranks whose measurement counts have begun to compute together."""
        return self._entries[active] if active in self._windows else 0

    def expire(self) -> set[int]:
        """Remove old measurements, which may have been disturbed, so that their ranks can be tried again.

        Returns:
            Numbers of ranks without a measurement that were in a removed one.
        """
        old = {
            active
            for active in self._windows
            if self._ages[active] >= _VALID_WINDOWS * 2 ** self._entries[active]
        }
        self.forget(lambda active: active in old)
        return {len(active) for active in old} - {len(active) for active in self._windows}

    def forget(self, concerns: Callable[[tuple[int, ...]], bool]) -> None:
        """Remove the measurements of sets of ranks.

        Args:
            concerns: whether the measurement of a set is no longer valid.
        """
        self._windows = {active: windows for active, windows in self._windows.items() if not concerns(active)}

    def correction(self, costs: Sequence[RankCost], exchange: ExchangeCost) -> Callable[[Split], Split]:
        """Return a function that replaces predictions by measurements of the same set of ranks.

        A measurement with other shares is scaled by the ratio of the two predictions. Of a set that does not
        compute now the best window counts, because others may have been disturbed; if the set computes again,
        it is measured again.

        Args:
            costs: current cost of a step on each rank.
            exchange: current cost of an exchange.
        """
        factors = {
            active: (statistics.median if active == self._current else min)(
                step_s / predict(samples, costs, exchange).step_s for samples, step_s in windows
            )
            for active, windows in self._windows.items()
        }

        def correct(split: Split) -> Split:
            return scale(split, factors.get(split.active, 1.0))

        return correct


def scale(split: Split, factor: float) -> Split:
    """Return a division whose predicted time and energy are multiplied by a factor."""
    joules = None if split.step_joules is None else split.step_joules * factor
    return dataclasses.replace(split, step_s=split.step_s * factor, step_joules=joules)
