"""Correction factors of one workload: its measured deviations from the training model.

The factors depend on the batch size and the power limit. `calibration.kriging` fits the factors. This
module interpolates between them. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
EXTRAPOLATION_NODES = 2
"""Number of added grid nodes on each side of the measured batch sizes. They lie at a half and a quarter of
the smallest batch size, and at twice and four times the largest. The factor is 1 at the outermost nodes.
"""
_SUPPORT_DOUBLINGS = 0.5
"""Distance from a measured batch size, in doublings, at which the support falls to 0."""


@dataclass(frozen=True, slots=True)
class Residuals:
    """Correction factors for the predictions of one workload in one precision.

    The factors are a table over batch sizes and power limits. A factor is a measured value divided by the
    predicted value, with noise removed as far as possible. A prediction is multiplied by the factor for its
    batch size and power limit. Between two entries of the table, the factor is interpolated linearly in the
    logarithm of the batch size and in the power limit. For power limits outside the table, the factor of the
    nearest power limit is used. For batch sizes outside the table, the factor is 1.

    Attributes:
        batches: batch sizes in rising order. The first and the last `EXTRAPOLATION_NODES` batch sizes are
            not measured: they were added beyond the measured batch sizes.
        caps_watts: power limits in rising order; the design power of the device means no limit.
        time: factors on seconds per step, shape (batches, limits).
        power: factors on watts, shape (batches, limits).
    """

    batches: Sequence[float]
    caps_watts: Sequence[float]
    time: Sequence[Sequence[float]]
    power: Sequence[Sequence[float]]

    def at(self, batch: Any, cap_watts: Any) -> tuple[Array, Array]:
        """Return factors that correct the predicted seconds per step and the predicted watts.

        The factors come from deviations that were measured at similar configurations.

        Args:
            batch: samples per device and step, an array.
            cap_watts: power limits in watts, an array of the same shape. The results have this shape, too.
        """
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
        """Return how close each batch size is to a measured batch size, from 0 (far) to 1 (measured).

        The result falls linearly with the distance in the logarithm of the batch size. The result is 0 at a
        factor of sqrt(2) between the batch sizes and beyond.

        Args:
            batch: samples per device and step, an array. The result has its shape.
        """
        measured = np.log2(self.batches[EXTRAPOLATION_NODES:-EXTRAPOLATION_NODES])
        distance = np.abs(np.log2(np.asarray(batch, dtype=np.float64))[..., None] - measured).min(axis=-1)
        return np.asarray(np.clip(1.0 - distance / _SUPPORT_DOUBLINGS, 0.0, 1.0))
