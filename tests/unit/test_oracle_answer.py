"""Answers, falling back from one oracle to the next, and errors made on purpose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.errors import NotFoundError
from slurm_energy.oracle.noisy_oracle import NoisyOracle
from slurm_energy.oracle.prediction import (
    Estimate,
    FallbackOracle,
    Prediction,
    PredictionRequest,
    PredictionSource,
)

ANSWER = Prediction(
    Estimate(100.0, 80.0, 130.0),
    Estimate(300.0, 280.0, 310.0),
    Estimate(3e4, 2e4, 4e4),
    PredictionSource.MODEL,
    "by hand",
)


class Fixed:
    def __init__(self, answer: Prediction | None) -> None:
        self.answer = answer

    def predict(self, question: PredictionRequest) -> Prediction | None:
        return self.answer


@pytest.mark.parametrize(
    "values", [(1.0, 2.0, 3.0), (5.0, 1.0, 4.0), (1.0, -1.0, 2.0), (1.0, 0.0, float("nan"))]
)
def test_an_estimate_lies_in_its_range(values: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="no estimate"):
        Estimate(*values)


def test_the_first_oracle_that_knows_answers() -> None:
    chain = FallbackOracle([Fixed(None), Fixed(ANSWER), Fixed(None)])
    assert chain.require(PredictionRequest(user="alice")) is ANSWER
    assert FallbackOracle([Fixed(None)]).predict(PredictionRequest()) is None
    with pytest.raises(NotFoundError, match="no source knows this job"):
        FallbackOracle([]).require(PredictionRequest())


def test_answers_as_plain_data() -> None:
    plain = ANSWER.to_json()
    assert plain["duration_s"] == {"mean": 100.0, "low": 80.0, "high": 130.0}
    assert (plain["source"], plain["age_s"]) == ("model", None)
    assert ANSWER.edp_js == 3e6


@given(st.integers(), st.text(max_size=8), st.floats(0, 0.3))
def test_noise_stays_within_its_share_and_is_the_same_again(seed: int, user: str, share: float) -> None:
    noisy = NoisyOracle(Fixed(ANSWER), seed, share)
    answer = noisy.predict(PredictionRequest(user=user))
    assert answer is not None
    assert answer == NoisyOracle(Fixed(ANSWER), seed, share).predict(PredictionRequest(user=user))
    assert abs(answer.duration_s.mean / 100 - 1) <= share + 1e-9
    assert abs(answer.power_watts.mean / 300 - 1) <= share + 1e-9
    factor = answer.duration_s.mean / 100 * answer.power_watts.mean / 300
    assert answer.energy_joules.mean == pytest.approx(3e4 * factor)


def test_noise_differs_by_question_and_seed() -> None:
    answers = {
        NoisyOracle(Fixed(ANSWER), s).predict(PredictionRequest(user=u)) for s in (1, 2) for u in ("a", "b")
    }
    assert len(answers) == 4


def test_noisy_power_stays_within_the_hardware() -> None:
    for seed in range(20):
        answer = NoisyOracle(Fixed(ANSWER), seed, tdp_watts=295.0).predict(PredictionRequest())
        assert answer is not None
        assert answer.power_watts.mean <= 295.0
        assert answer.power_watts.high <= 295.0
