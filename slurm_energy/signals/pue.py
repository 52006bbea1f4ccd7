"""Power usage effectiveness (PUE) as a function of the outside temperature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slurm_energy.errors import UsageError


@dataclass(frozen=True, slots=True)
class PueModel:
    """PUE as a polynomial of the outside temperature T: constant + linear T + quadratic T^2.

    Temperatures outside the range of the model are clipped to this range. The default is the fit of Xu, Feng
    and Li, "Temperature Aware Workload Management in Geo-distributed Data Centers" (ICAC 2013), to a cooling
    system with an economizer. This fit covers cooling only. A site with other losses adds these losses to
    `constant`.

    Attributes:
        constant: PUE at 0 degrees Celsius.
        linear: increase of the PUE per degree.
        quadratic: increase of the PUE per square degree.
        min_celsius, max_celsius: range of temperatures in which the model is valid.
    """

    constant: float = 1.0743
    linear: float = 0.0041
    quadratic: float = 7.1705e-5
    min_celsius: float = -5.0
    max_celsius: float = 40.0

    def __post_init__(self) -> None:
        if not self.min_celsius < self.max_celsius:
            raise UsageError("PUE model", "the minimum temperature must be below the maximum")
        if not np.all(self.pue(np.linspace(self.min_celsius, self.max_celsius, 101)) >= 1.0):
            raise UsageError("PUE model", "the PUE is below 1 in the range of temperatures")

    def pue(self, outside_celsius: ArrayLike) -> NDArray[np.float64]:
        """Return the PUE at outside temperatures; NaN where the temperature is NaN."""
        celsius = np.clip(np.asarray(outside_celsius, np.float64), self.min_celsius, self.max_celsius)
        ratio: NDArray[np.float64] = (
            self.constant + self.linear * celsius + self.quadratic * np.square(celsius)
        )
        return ratio


DEFAULT_PUE: Final = PueModel()
