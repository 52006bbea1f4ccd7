"""Correction of power budgets if nodes draw more power than their limits (ceilings) permit.

The excess of the measured power is subtracted from the limit of the budget.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from slurm_energy.scheduling.queue import Floats

_DECAY_S: Final = 60.0
_TOLERANCE: Final = 0.01
"""Part of the committed power that the measured power may exceed before it counts."""
_MIN_WATTS: Final = 1.0


class MeasuredExcess:
    """Correction of budgets whose measured power exceeds the power that their ceilings permit.

    A ceiling is the upper bound of a device's power limit. The correction is subtracted from the limit of
    the budget. It is the minimum excess in the last `window_s` seconds, and it falls slowly when the
    measured power no longer exceeds the permitted power.

    Attributes:
        window_s: time in seconds for which an excess must last. Shorter excesses are ignored, because the
            measured power is the mean of a past interval. It exceeds ceilings that have just been lowered,
            and does not include devices that have just started.
    """

    def __init__(self) -> None:
        self.window_s = 2.5
        self._samples: dict[str, list[tuple[float, float]]] = {}
        self._correction: dict[str, float] = {}
        self._updated_s = -math.inf

    def update(
        self, names: Sequence[str], measured_watts: Floats, committed_watts: Floats, now_s: float
    ) -> Floats:
        """Return the correction of each budget in watts, shape (b,).

        The correction is the power by which the measured power lastingly exceeds the committed power.

        Args:
            names: names of the b budgets. The state of budgets that are not listed is discarded.
            measured_watts: measured power under each budget, shape (b,).
            committed_watts: committed power under the ceilings in force, shape (b,).
            now_s: time on a monotonic clock.
        """
        kept = math.exp(-max(0.0, now_s - self._updated_s) / _DECAY_S)
        self._updated_s = now_s
        excess = measured_watts - committed_watts * (1.0 + _TOLERANCE)
        samples, correction = {}, {}
        for name, watts in zip(names, np.nan_to_num(excess, nan=0.0).tolist(), strict=True):
            samples[name] = self._window([*self._samples.get(name, []), (now_s, watts)], now_s)
            lasts = now_s - samples[name][0][0] >= self.window_s
            lasting_watts = min(watts for _, watts in samples[name]) if lasts else 0.0
            value = max(self._correction.get(name, 0.0) * kept, lasting_watts)
            correction[name] = value if value >= _MIN_WATTS else 0.0
        self._samples, self._correction = samples, correction
        return np.array([correction[name] for name in names], np.float64)

    def _window(self, samples: list[tuple[float, float]], now_s: float) -> list[tuple[float, float]]:
        """Return the samples of the last `window_s` seconds, and the last sample before these seconds."""
        begin_s = now_s - self.window_s
        recent = [sample for sample in samples if sample[0] > begin_s]
        return [*[sample for sample in samples if sample[0] <= begin_s][-1:], *recent]
