"""An oracle that errs on purpose, for simulations: its answers are those of another, a little wrong."""

from __future__ import annotations

import random
import zlib
from dataclasses import replace

from slurm_energy.oracle.prediction import Estimate, Oracle, Prediction, PredictionRequest


class NoisyOracle:
    """Multiplies time and power by factors drawn evenly from 1 +- `share`, power at most `tdp_watts`.

    The same question and seed give the same answer, in any order of asking.

    Args:
        truth: the oracle that is right.
        seed: seed of the errors.
        share: largest relative error.
        tdp_watts: most that the job's hardware can draw; None: no bound.

    Source: thesis, section 5.3 (noise of 10 %, capped at TDP).
    """

    def __init__(self, truth: Oracle, seed: int, share: float = 0.10, tdp_watts: float | None = None) -> None:
        if not 0 <= share < 1:
            raise ValueError("share must be in [0, 1)")
        self._truth, self._seed, self._share, self._tdp_watts = truth, seed, share, tdp_watts

    def predict(self, question: PredictionRequest) -> Prediction | None:
        """Return the wrong answer, or None where the other knows nothing."""
        answer = self._truth.predict(question)
        if answer is None:
            return None
        draw = random.Random(zlib.crc32(repr((self._seed, question)).encode()))
        slower = draw.uniform(1 - self._share, 1 + self._share)
        hungrier = draw.uniform(1 - self._share, 1 + self._share)
        most = self._tdp_watts or float("inf")
        power = _scaled(answer.power_watts, hungrier, most)
        ratio = power.mean / answer.power_watts.mean if answer.power_watts.mean else 1.0
        return replace(
            answer,
            duration_s=_scaled(answer.duration_s, slower),
            power_watts=power,
            energy_joules=_scaled(answer.energy_joules, slower * ratio),
            basis=f"{answer.basis}, errors up to {self._share:.0%} added",
        )


def _scaled(estimate: Estimate, factor: float, most: float = float("inf")) -> Estimate:
    values = (estimate.mean, estimate.low, estimate.high)
    return Estimate(*(min(value * factor, most) for value in values))
