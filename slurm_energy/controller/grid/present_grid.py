"""Present carbon intensity and price for the responses to live reports, read once a minute."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from slurm_energy.controller.grid.source import GridFactorSource
from slurm_energy.errors import EnergyError
from slurm_energy.grid.present_factors import PresentFactors

_MAX_AGE_S: Final = 60.0


class PresentGrid:
    """Cache of the *factors* of energy: the present carbon intensity and price.

    Args:
        source: reads the factors in force.
        clock: returns Unix seconds.
    """

    def __init__(self, source: GridFactorSource, clock: Callable[[], float] = time.time) -> None:
        self._source, self._clock = source, clock
        self._read_s, self._factors = -_MAX_AGE_S, PresentFactors()

    async def current(self) -> PresentFactors:
        """Return the present carbon intensity and price.

        Both are unknown while the database or a file cannot be read.
        """
        now_s = self._clock()
        if abs(now_s - self._read_s) >= _MAX_AGE_S:
            self._read_s = now_s
            try:
                self._factors = PresentFactors.of(await self._source.factors(now_s, now_s), now_s)
            except EnergyError:  # the route of the grid reports it to those who ask
                self._factors = PresentFactors()
        return self._factors
