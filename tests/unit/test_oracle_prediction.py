"""Tests of predictions as JSON data, and of the fallback from one predictor to the next.

A predictor is called oracle.
"""

from __future__ import annotations

import pytest

from slurm_energy.errors import NotFoundError
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
    def __init__(self, prediction: Prediction | None) -> None:
        self.prediction = prediction

    def predict(self, request: PredictionRequest) -> Prediction | None:
        return self.prediction


@pytest.mark.parametrize(
    "values", [(1.0, 2.0, 3.0), (5.0, 1.0, 4.0), (1.0, -1.0, 2.0), (1.0, 0.0, float("nan"))]
)
def test_an_estimate_lies_in_its_range(values: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="invalid estimate"):
        Estimate(*values)


def test_the_first_prediction_is_returned() -> None:
    chain = FallbackOracle([Fixed(None), Fixed(ANSWER), Fixed(None)])
    assert chain.require(PredictionRequest(user="alice")) is ANSWER
    assert FallbackOracle([Fixed(None)]).predict(PredictionRequest()) is None
    with pytest.raises(NotFoundError, match="no source can predict this job"):
        FallbackOracle([]).require(PredictionRequest())


def test_predictions_round_trip_through_json() -> None:
    plain = ANSWER.to_json()
    assert plain["duration_s"] == {"mean": 100.0, "low": 80.0, "high": 130.0}
    assert (plain["source"], plain["age_s"]) == ("model", None)
    assert ANSWER.edp_js == 3e6
