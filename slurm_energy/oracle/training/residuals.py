"""What measurements of one workload say beyond the model: factors over batch size and power limit. Pure.

Finding them is the work of `calibration.kriging`; here they are only looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
EXTRAPOLATION_NODES = 2
"""Nodes on each side of the measured batches: at a half and a quarter of the least, at twice and four times
the greatest, where factors are back at 1."""
_SUPPORT_DOUBLINGS = 0.5
"""Doublings of the batch from a measured one at which nothing is left of having measured the very job."""


@dataclass(frozen=True, slots=True)
class Residuals:
    """Measured over predicted, for one workload in one precision, freed of noise as far as can be told.

    Between nodes factors are straight lines over the logarithm of the batch and over the limit; beyond the
    limits they stay, beyond the batches they are 1.

    Attributes:
        batches: nodes, rising; `BEYOND` on each side are not measured.
        caps_watts: power limits, rising; no limit counts as the design power.
        time: factors on seconds per step, shape (batches, limits).
        power: factors on watts, likewise.
    """

    batches: Sequence[float]
    caps_watts: Sequence[float]
    time: Sequence[Sequence[float]]
    power: Sequence[Sequence[float]]

    def at(self, batch: Any, cap_watts: Any) -> tuple[Array, Array]:
        """Return the factors on time and on power at batches and limits of the same shape."""
        batch_position = np.interp(np.log2(batch), np.log2(self.batches), np.arange(len(self.batches)))
        cap_position = np.interp(cap_watts, self.caps_watts, np.arange(len(self.caps_watts)))
        row_below = np.minimum(batch_position.astype(np.int64), len(self.batches) - 2)
        left = np.minimum(cap_position.astype(np.int64), max(0, len(self.caps_watts) - 2))
        right = np.minimum(left + 1, len(self.caps_watts) - 1)
        down, over = batch_position - row_below, cap_position - left
        corners = (row_below, left), (row_below, right), (row_below + 1, left), (row_below + 1, right)
        weights = (1 - down) * (1 - over), (1 - down) * over, down * (1 - over), down * over
        pairs = list(zip(corners, weights, strict=True))
        time, power = (
            sum(table[corner] * weight for corner, weight in pairs)
            for table in (np.asarray(self.time), np.asarray(self.power))
        )
        return np.asarray(time), np.asarray(power)

    def support(self, batch: Any) -> Array:
        """Return how far the very job was measured: 1 at a measured batch, 0 from half a doubling away on."""
        measured = np.log2(self.batches[EXTRAPOLATION_NODES:-EXTRAPOLATION_NODES])
        distance = np.abs(np.log2(np.asarray(batch, dtype=np.float64))[..., None] - measured).min(axis=-1)
        return np.asarray(np.clip(1.0 - distance / _SUPPORT_DOUBLINGS, 0.0, 1.0))
