"""Tests of the 90 % range in which a measured value is expected around its prediction.

The width of the range follows from Student's t distribution and from a conformal quantile of the scores
(scaled errors of earlier predictions).
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

np = pytest.importorskip("numpy", reason="predictions need numpy")
special = pytest.importorskip("scipy.special", reason="the reference quantiles need scipy")

from slurm_energy.oracle.calibration_files import shipped_prior  # noqa: E402
from slurm_energy.oracle.hardware import find_hardware  # noqa: E402
from slurm_energy.oracle.transfer.prior import NO_TRANSFER, Transfer, combined  # noqa: E402
from slurm_energy.oracle.transfer.ranges import (  # noqa: E402
    COVERAGE,
    NORMAL_SCORES,
    SCORE_LEVELS,
    SCORES_WEIGHT,
    conformal_quantile,
    half_width,
    prior_half_width,
    student_95,
)

SCORES = st.lists(st.floats(0.01, 50.0), min_size=1, max_size=60).map(np.array)
PRIOR_SCORES = st.lists(st.floats(0.01, 50.0), min_size=len(SCORE_LEVELS), max_size=len(SCORE_LEVELS)).map(
    lambda values: tuple(sorted(values))
)
NONE = np.array([])


@given(st.floats(4.0, 1e6))
def test_students_quantile(free: float) -> None:
    assert student_95(free) == pytest.approx(special.stdtrit(free, 0.95), rel=0.003)


def test_normal_scores_are_those_of_the_normal_distribution() -> None:
    assert pytest.approx(special.ndtri((1.0 + SCORE_LEVELS) / 2.0), abs=1e-4) == NORMAL_SCORES
    assert prior_half_width(NORMAL_SCORES) == pytest.approx(special.ndtri(0.95), rel=0.02)


def test_scores_between_kinds_have_the_minimum_weight_of_a_quantile() -> None:
    assert pytest.approx(9.0) == SCORES_WEIGHT
    assert COVERAGE * (SCORES_WEIGHT + 1.0) <= SCORES_WEIGHT + 1e-9


@given(PRIOR_SCORES, SCORES)
def test_the_conformal_quantile_is_one_of_the_pooled_range_and_ignores_order(
    prior_scores: tuple[float, ...], own_scores: np.ndarray
) -> None:
    quantile = conformal_quantile(prior_scores, own_scores)
    pooled = np.concatenate((prior_scores, own_scores))
    assert pooled.min() <= quantile <= pooled.max()
    assert conformal_quantile(prior_scores, own_scores[::-1]) == pytest.approx(quantile)
    assert conformal_quantile(prior_scores, NONE) == prior_half_width(prior_scores)


@given(PRIOR_SCORES, SCORES, st.floats(0.01, 100.0))
def test_the_half_width_scales_with_all_scores(
    prior_scores: tuple[float, ...], own_scores: np.ndarray, factor: float
) -> None:
    """The width of a prediction range is proportional to the scores of earlier predictions.

    A score is the scaled error of an earlier prediction. Some scores come from the predicted kind of
    device, the others from other kinds. If all scores are multiplied by a factor, the width is multiplied
    by the same factor.
    """
    quantile = conformal_quantile(prior_scores, own_scores)
    scaled = tuple(factor * score for score in prior_scores)
    assert conformal_quantile(scaled, factor * own_scores) == pytest.approx(factor * quantile)
    assert prior_half_width(scaled) == pytest.approx(factor * prior_half_width(prior_scores))


@given(PRIOR_SCORES, SCORES, st.data())
def test_a_worse_score_never_narrows_the_range(
    prior_scores: tuple[float, ...], own_scores: np.ndarray, data: st.DataObject
) -> None:
    worse = own_scores.copy()
    worse[data.draw(st.integers(0, len(worse) - 1))] *= data.draw(st.floats(1.0, 20.0))
    first, second = (half_width(prior_scores, scores, len(scores), 1.0) for scores in (own_scores, worse))
    assert second >= first * (1.0 - 1e-9)


@given(PRIOR_SCORES, SCORES, st.floats(1.0, 20.0))
def test_scattered_observations_never_narrow_the_range(
    prior_scores: tuple[float, ...], own_scores: np.ndarray, scatter: float
) -> None:
    count = len(own_scores)
    steady = half_width(prior_scores, own_scores, count, 1.0)
    assert half_width(prior_scores, own_scores, count, scatter) >= steady > 0.0


def test_many_own_scores_outweigh_those_between_kinds() -> None:
    own_scores = np.random.default_rng(4).exponential(size=4000)
    truth = -np.log(1.0 - COVERAGE)
    for factor in (0.1, 10.0):
        scores = tuple(factor * score for score in NORMAL_SCORES)
        assert conformal_quantile(scores, own_scores) == pytest.approx(truth, rel=0.1)


@pytest.mark.parametrize("count", [9, 15, 40])
def test_the_next_row_is_covered_with_the_stated_probability(count: int) -> None:
    """The predicted range contains the next measurement with the stated probability.

    In the test, the errors have heavy tails, and only few earlier errors are known. The range therefore
    needs a correction for small samples.
    """
    generator = np.random.default_rng(5)
    prior_scores = special.stdtrit(4, (1.0 + SCORE_LEVELS) / 2.0)
    inside = []
    for _ in range(2000):
        *own_scores, following = np.abs(generator.standard_t(4, size=count + 1))
        inside.append(following <= conformal_quantile(prior_scores, np.array(own_scores)))
    most = COVERAGE + 1.0 / (SCORES_WEIGHT + count + 1.0)
    assert COVERAGE - 0.02 <= float(np.mean(inside)) <= most + 0.02


def test_several_kinds_average_their_scores() -> None:
    wide = tuple(3.0 * score for score in NORMAL_SCORES)
    both = combined([Transfer(("one",)), Transfer(("two",), time_scores=wide)])
    assert both.time_scores == pytest.approx(tuple(2.0 * score for score in NORMAL_SCORES))
    assert both.power_scores == pytest.approx(NORMAL_SCORES)
    assert NO_TRANSFER.scores == (NORMAL_SCORES, NORMAL_SCORES)


def test_shipped_scores_rise_and_differ_between_kinds() -> None:
    a40, rtx6000 = (shipped_prior(find_hardware(kind).name) for kind in ("a40", "rtx6000"))
    for scores in (*a40.scores, *rtx6000.scores):
        assert len(scores) == len(SCORE_LEVELS)
        assert list(scores) == sorted(scores) and scores[0] > 0.0
    assert a40.time_scores != rtx6000.time_scores  # each GPU's range comes from the other's file
